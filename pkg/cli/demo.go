package cli

import (
	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/simulate"
)

func newDemo(a *app) *cobra.Command {
	f := simulateFlags{}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Watch a whole drop on private servers",
		Long: `Start a private Redis and a private PostgreSQL, put lots on sale and let thousands of virtual
users in: they click twice, retry, pay in time or too late, give units back or never return. Then
wait until everything is recorded, compare both stores record by record, hold what every user was
told against the ledger, and print the verdict.

Nothing of this machine's own servers is touched, and nothing is left behind. The exit status is 6
if any guarantee broke. The same --seed makes the users decide the same; who gets what, and so the
totals, still varies with timing. It is the scenario truffle-lot of dropctl simulate.`,
		Example: `  dropctl demo
  dropctl demo --users 2000 --seed 7
  dropctl demo -q -o json --jq .verdict`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			scenario, err := a.scenario(cmd, simulate.Demo, f)
			if err != nil {
				return err
			}
			return a.simulate(cmd.Context(), scenario, false)
		},
	}
	f.register(cmd)
	cmd.Flags().Lookup("users").DefValue, cmd.Flags().Lookup("seed").DefValue = "10000", "1"
	return cmd
}

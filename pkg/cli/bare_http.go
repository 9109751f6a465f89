package cli

import (
	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/bench/bars"
	"github.com/dropctl/dropctl/pkg/telemetry"
)

// newBareHTTP is what the benchmark runs in a process of its own to compare the HTTP API with; nobody else has a use for it.
func newBareHTTP(*app) *cobra.Command {
	var listen string
	cmd := &cobra.Command{
		Use:     "bare-http",
		Short:   "Answer like the HTTP API without doing anything",
		Hidden:  true,
		Example: `  dropctl bare-http --listen 127.0.0.1:8080`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ln, err := telemetry.Listen(cmd.Context(), listen)
			if err != nil {
				return err
			}
			return telemetry.Serve(cmd.Context(), ln, bars.Bare())
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:8080", "address to listen on")
	completeNothing(cmd, "listen")
	return cmd
}

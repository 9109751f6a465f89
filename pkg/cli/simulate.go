package cli

import (
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/cli/wire"
	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/render"
	"github.com/dropctl/dropctl/pkg/simulate"
)

// simulateFlags are what the command line says of a scenario.
type simulateFlags struct {
	users int
	seed  uint64
}

func (f *simulateFlags) register(cmd *cobra.Command) {
	cmd.Flags().IntVar(&f.users, "users", 0, "virtual users in all")
	cmd.Flags().Uint64Var(&f.seed, "seed", 0, "what their decisions are drawn from")
	completeNothing(cmd, "users", "seed")
	for _, flag := range []string{"users", "seed"} {
		cmd.Flags().Lookup(flag).DefValue = "the scenario's"
	}
}

func newSimulate(a *app) *cobra.Command {
	f := simulateFlags{}
	var list, text, onReal, tortured bool
	var minutes float64
	var faultTexts []string
	cmd := &cobra.Command{
		Use:   "simulate [SCENARIO]",
		Short: "Rehearse a drop with people in it, then audit it",
		Long: `Play a drop as a scenario describes it: which lots are on sale, and who comes to buy. People arrive
in a spike, up a ramp or when they once really came; they want several lots, click twice, reload,
hesitate, lose patience, pay slowly, too late or not at all, give back and want refunds; bots
ignore limits. If the scenario has a gateway, dropctl charges for what is confirmed through one
that answers late, declines, is undecided or stays silent, and the money is audited, too. It runs
on a private Redis and a private PostgreSQL: nothing of this machine's own servers is touched, and
nothing is left behind. With --rehearse it runs on the servers of the settings, in a space of its
own: keys and a schema that the shop does not see, and that are removed at the end. The shop's
customers feel the load, so where there are lots it asks first.

With --fault, which can be repeated, something goes wrong in the middle of it: a private server is
killed (and started again after a moment, as by a supervisor), restarted, paused or emptied, or its
replies are lost or late. Then the shop has to recover by itself before it is audited.

With --torture there is no scenario: callers do everything at once that can be done to lots while
servers are killed, paused, cut off and emptied at random. Every lot is checked all the time, and
what each caller was told at the end. The same seed makes the same decisions; what broke a promise
is printed with the history of its lot.

SCENARIO is one that ships (--list), a file, or - for stdin. Begin with one that ships: --print
shows it. The whole scenario is checked before anything starts. The same seed makes the same
decisions; who gets what still varies with timing.

At the end everything is recorded, both stores are compared record by record, and what every user
was told is held against the ledger. The exit status is 6 if any guarantee broke. After Ctrl-C it
prints what it has, without a verdict on what was not compared.`,
		Example: `  dropctl simulate sneaker-raid --seed 7
  dropctl simulate --list
  dropctl simulate --print ticket-drop > mine.yaml
  dropctl simulate mine.yaml --users 100000 -o json --jq .verdict
  dropctl simulate truffle-lot --fault 'kill redis at 2s' --fault 'drop 1% replies'
  dropctl simulate truffle-lot --fault 'pause postgres 5s at 2s' --fault 'kill worker at 3s'
  dropctl simulate --torture --seed 7 --minutes 10
  dropctl simulate mine.yaml --rehearse --redis-url rediss://redis.example.com --yes`,
		Args: cobra.MaximumNArgs(1),
		ValidArgsFunction: firstOnly(func(_ *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
			return offer(shippedScenarios(), nil, prefix), cobra.ShellCompDirectiveDefault // or a file
		}),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case list && (text || len(args) > 0):
				return fault.New(fault.Usage, "--list goes alone").WithField("list")
			case list:
				return a.listScenarios()
			case tortured:
				return a.tortureAlone(cmd, args, f, minutes)
			case cmd.Flags().Changed("minutes"):
				return fault.New(fault.Usage, "--minutes is how long to torture").WithField("minutes").WithHint("use it with --torture; a scenario takes as long as its users")
			case len(args) == 0:
				return fault.New(fault.Usage, "SCENARIO is missing").WithHint("name a file, or one that ships: %s", strings.Join(simulate.Shipped(), ", "))
			case text:
				return a.printScenario(args[0])
			}
			faults, err := parseFaults(faultTexts)
			if err != nil {
				return err
			}
			if onReal && len(faults) > 0 {
				return fault.New(fault.Usage, "--fault is for private servers, not for those of a shop").WithField("fault").WithHint("leave --rehearse or --fault out")
			}
			scenario, err := a.scenario(cmd, args[0], f)
			if err != nil {
				return err
			}
			if len(faults) > 0 {
				return a.simulateFaults(cmd.Context(), scenario, faults)
			}
			return a.simulate(cmd.Context(), scenario, onReal)
		},
	}
	a.settings(cmd, cmd.Flags(), config.Redis, config.Database, config.Durable)
	f.register(cmd)
	cmd.Flags().BoolVar(&onReal, "rehearse", false, "play it on the servers of the settings, in a space of its own")
	cmd.Flags().StringArrayVar(&faultTexts, "fault", nil, "what goes wrong, such as 'kill redis at 3s' (repeatable)")
	_ = cmd.RegisterFlagCompletionFunc("fault", cobra.FixedCompletions(faultExamples, cobra.ShellCompDirectiveNoFileComp))
	cmd.Flags().BoolVar(&tortured, "torture", false, "do everything at random to private servers instead of a scenario")
	cmd.Flags().Float64Var(&minutes, "minutes", 1, "how long to torture")
	completeNothing(cmd, "minutes")
	cmd.Flags().BoolVar(&list, "list", false, "list the scenarios that ship")
	cmd.Flags().BoolVar(&text, "print", false, "print the scenario that ships under this name")
	return cmd
}

// shippedScenarios are offered by completion.
func shippedScenarios() (all []candidate) {
	for _, name := range simulate.Shipped() {
		all = append(all, candidate{word: name})
	}
	return all
}

// scenarioView is a scenario in a list.
type scenarioView struct {
	Name  string `json:"name" table:"SCENARIO,name"`
	Users int    `json:"users" table:"USERS"`
	Lots  int    `json:"lots" table:"LOTS"`
	About string `json:"about" table:"ABOUT"`
}

func (a *app) listScenarios() error {
	views := []scenarioView{}
	for _, name := range simulate.Shipped() {
		s, err := a.readScenario(name)
		if err != nil {
			return err
		}
		views = append(views, scenarioView{s.Name, s.Users(), len(s.Lots), s.About})
	}
	return a.print(views)
}

// printScenario prints the text of a scenario that ships.
func (a *app) printScenario(name string) error {
	text, _, ok := simulate.ShippedText(name)
	if !ok {
		return unknownScenario(name)
	}
	return a.out.Text(string(text), fileView{Text: string(text)})
}

func unknownScenario(name string) error {
	hint := "these ship: " + strings.Join(simulate.Shipped(), ", ")
	if near := fault.Nearest(name, simulate.Shipped()); near != "" {
		hint = "did you mean " + near + "?"
	}
	return fault.New(fault.Usage, "no scenario %.60q ships", name).WithHint("%s", hint)
}

// scenario reads a scenario and lays the flags over it. It dials nothing.
func (a *app) scenario(cmd *cobra.Command, name string, f simulateFlags) (simulate.Scenario, error) {
	users := cmd.Flags().Changed("users")
	if users && (f.users < 1 || f.users > simulate.MaxUsers) {
		return simulate.Scenario{}, fault.New(fault.Usage, "--users %d is out of range", f.users).WithField("users").WithHint("use 1 to %d", simulate.MaxUsers)
	}
	s, err := interruptible(cmd.Context(), func() (simulate.Scenario, error) { return a.readScenario(name) })
	if err != nil {
		return s, err
	}
	if users {
		s = s.Scaled(f.users)
	}
	if cmd.Flags().Changed("seed") {
		s.Seed = f.seed
	}
	return s, nil
}

// readScenario reads a scenario that ships, else a file, whose own files are looked for beside it.
func (a *app) readScenario(name string) (simulate.Scenario, error) {
	src := simulate.Source{Name: name, Lots: wire.ScenarioLots}
	var ships bool
	if src.Text, src.Read, ships = simulate.ShippedText(name); ships {
		return simulate.Parse(src)
	}
	var err error
	shipped := src.Read
	src.Read = func(file string) ([]byte, error) {
		path := file
		if !filepath.IsAbs(file) {
			path = filepath.Join(filepath.Dir(name), file)
		}
		data, err := readInput(path)
		if errors.Is(err, os.ErrNotExist) { // of a scenario that was printed, the lots still ship
			if data, shipErr := shipped(file); shipErr == nil {
				return data, nil
			}
		}
		return data, err
	}
	if name == "-" {
		src.Name = "stdin"
		src.Text, err = io.ReadAll(io.LimitReader(a.in, maxInput))
	} else if src.Text, err = readInput(name); errors.Is(err, os.ErrNotExist) && !strings.ContainsAny(name, `/\.`) {
		return simulate.Scenario{}, unknownScenario(name)
	}
	if err != nil {
		return simulate.Scenario{}, fault.Wrap(fault.Usage, err, "the scenario cannot be read").WithHint("name a file, or one that ships: %s", strings.Join(simulate.Shipped(), ", "))
	}
	s, err := simulate.Parse(src)
	if list := fault.ProblemsOf(err); len(list) > 1 && !a.jsonErrors() { // the error has room for the first only
		for _, p := range list {
			a.say("%s\n", render.Clean(simulate.Place(src.Name, p)))
		}
	}
	return s, err
}

const maxInput = 64 << 20 // of a scenario or a file it names

// readInput reads a file that is not too large.
func readInput(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fault.Wrap(fault.Usage, err, "the file cannot be read")
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, maxInput+1))
	switch {
	case err != nil:
		return nil, fault.Wrap(fault.Usage, err, "the file cannot be read")
	case len(data) > maxInput:
		return nil, fault.New(fault.Usage, "%s is larger than %d MiB", path, maxInput>>20)
	}
	return data, nil
}

// simulate plays a scenario and prints what came of it, be it only what was until an interruption.
func (a *app) simulate(ctx context.Context, s simulate.Scenario, onReal bool) (err error) {
	bank, closeBank, err := a.openBank(s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeBank()) }()
	open := a.privateStores
	if onReal {
		open = a.spaceStores
	}
	l, st, closeStores, err := open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeStores()) }()
	return a.played(a.rehearse(ctx, l, st, s, around{bank: bank}))
}

// simulateFaults is simulate on private servers to which something happens.
func (a *app) simulateFaults(ctx context.Context, s simulate.Scenario, faults []lab.Fault) (err error) {
	bank, closeBank, err := a.openBank(s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeBank()) }()
	m, err := a.openMishaps(ctx, faults, a.paymentTarget(bank))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.laboratory.Close(context.WithoutCancel(ctx))) }()
	return a.played(a.rehearse(ctx, m.laboratory.Ledger, m.laboratory.Stock, s, around{bank: bank, mishaps: m}))
}

// played prints what came of a scenario.
func (a *app) played(summary simulate.Summary, err error) error {
	if summary.Verdict == "" { // it did not come to that
		return err
	}
	printErr := a.print(summary)
	if summary.GaveUp > 0 {
		a.note("%d of %d users gave up before anybody took their call: %.0f calls a second were answered, and more came. Simulate fewer users, or let them arrive more slowly",
			summary.GaveUp, summary.Users, float64(summary.Requests)/summary.Took.Seconds())
	}
	if n := len(summary.Lost); n > 0 {
		mere := ""
		if summary.Err() == nil {
			mere = ". Nothing was sold twice for that"
		}
		a.note("what buyers were told before Redis was emptied is no longer so in %d cases: the ledger had not got it%s", n, mere)
	}
	if err = cmp.Or(err, printErr, summary.Err()); err != nil {
		return err
	}
	a.note("every unit is accounted for: %d units sold, as many recorded, none twice, none lost", summary.SoldUnits)
	return nil
}

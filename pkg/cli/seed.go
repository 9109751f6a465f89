package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/cli/wire"
	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/render"
	"github.com/dropctl/dropctl/pkg/seed"
)

// seedFlags are what the command line says of a seed.
type seedFlags struct {
	file, format string
	pairs        []string // of --map
	fields       map[string]*string
	o            seed.Options
}

func newSeed(a *app) *cobra.Command {
	var f seedFlags
	cmd := &cobra.Command{
		Use:   "seed [LOT --stock N | -f FILE]",
		Short: "Create lots, or change them, from flags or a file",
		Long: `Compare lots with what is there, then create what is new and change what differs.

A file is CSV with a header line, JSON (a list, {"lots": […]}, or one object a line) or YAML (a
list, or lots:). Its names are those of the flags: lot, stock, limit, hold, max_hold, opens, closes,
late, status, name. Lot and stock are needed. An empty cell means the default; of a lot that exists,
a field that the file does not have at all stays as it is. stock is the target, not an addition.

Times are RFC 3339, or local with a zone: 2026-12-01 10:00 Europe/Rome. A lot sells from opens until
just before closes. The whole file is checked before anything is written; with a mistake in it
nothing is. A foreign file's columns are named with --map; own names stay valid, status= leaves one
out, and what is not named is not read.

Running it again is safe: it finishes what a crash left half done and changes nothing else. A stock
that was changed since a seed last named it is kept, and a seed that names another one refused,
unless --overwrite-adjustments is given: by lot adjust, or by a refund with --no-restock, after
which the file has to name as many units less. Stock that Redis has lost is never made anew: that
takes dropctl restore.`,
		Example: `  dropctl seed truffle-99 --stock 40 --limit 2 --hold 10m
  dropctl seed -f lots.csv --dry-run
  dropctl seed -f export.csv --map lot=SKU,stock=Available
  dropctl seed -f - --format json < lots.json`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: firstOnly(a.completeFrom(a.lotIDs)),
		RunE: func(cmd *cobra.Command, args []string) error {
			rows, err := a.seedRows(cmd, args, f)
			if err != nil {
				return err
			}
			return a.seed(cmd.Context(), rows, f.o)
		},
	}
	a.settings(cmd, cmd.Flags(), config.Redis, config.Database, config.Durable)
	f.register(cmd)
	return cmd
}

func (f *seedFlags) register(cmd *cobra.Command) {
	fileFlag(cmd, &f.file, "read lots from this file, or from stdin with -")
	_ = cmd.MarkFlagFilename("file", "csv", "json", "jsonl", "yaml", "yml")
	cmd.Flags().StringVar(&f.format, "format", "", "the file's format: csv, json, yaml (default: by its name)")
	_ = cmd.RegisterFlagCompletionFunc("format", completeWords("csv", "json", "yaml"))
	cmd.Flags().StringSliceVar(&f.pairs, "map", nil, "columns of a foreign file, as field=column")
	cmd.Flags().Lookup("map").DefValue = ""
	completeNothing(cmd, "map")
	f.registerLot(cmd)
	dryRunFlag(cmd, &f.o.DryRun)
	cmd.Flags().BoolVar(&f.o.ExitCode, "exit-code", false, "with --dry-run: exit 6 if something would change")
	cmd.Flags().BoolVar(&f.o.Overwrite, "overwrite-adjustments", false, "set the stock even if somebody adjusted it since the last seed")
}

// registerLot registers the fields of a lot. They are texts: what a file may say of a field, its flag may say, too.
func (f *seedFlags) registerLot(cmd *cobra.Command) {
	f.fields = map[string]*string{}
	for _, field := range [][2]string{
		{"stock", "units to sell in all"}, {"limit", "units a user may take, 0 for no limit"}, {"hold", "how long a hold lasts (default 5m)"},
		{"max-hold", "how long a hold can be extended to (default 30m)"}, {"opens", "when the sale opens"}, {"closes", "when the sale closes"},
		{"late", "confirm after the deadline: refuse or reclaim (default refuse)"}, {"status", "open, paused or closed (default open)"}, {"name", "for people"},
	} {
		f.fields[field[0]] = cmd.Flags().String(field[0], "", field[1])
	}
	_ = cmd.RegisterFlagCompletionFunc("late", completeWords("refuse", "reclaim"))
	_ = cmd.RegisterFlagCompletionFunc("status", completeWords("open", "paused", "closed"))
}

// seedRows reads the lots, and dials nothing.
func (a *app) seedRows(cmd *cobra.Command, args []string, f seedFlags) ([]seed.Row, error) {
	if f.o.ExitCode && !f.o.DryRun {
		return nil, fault.New(fault.Usage, "--exit-code is of use with --dry-run only").WithField("exit-code")
	}
	texts := map[string]string{}
	var typed string
	for flag, text := range f.fields {
		if cmd.Flags().Changed(flag) {
			texts[strings.ReplaceAll(flag, "-", "_")], typed = *text, flag
		}
	}
	switch {
	case f.file != "" && len(args) > 0:
		return nil, fault.New(fault.Usage, "lots come from either -f %s or the argument %q", f.file, args[0]).WithHint("leave one of them out")
	case f.file != "" && typed != "":
		return nil, fault.New(fault.Usage, "--%s does not go with -f", typed).WithField(typed).WithHint("set it in the file")
	case f.file != "":
		return interruptible(cmd.Context(), func() ([]seed.Row, error) { return a.readLots(f) })
	case len(args) == 0:
		return nil, fault.New(fault.Usage, "no lot is named").WithHint("name a lot: dropctl seed LOT --stock N; or a file: dropctl seed -f lots.csv")
	case f.format != "" || len(f.pairs) > 0:
		return nil, fault.New(fault.Usage, "--format and --map go with -f only")
	}
	texts["lot"] = args[0]
	row, err := seed.Flags(texts)
	a.problems("", err)
	return []seed.Row{row}, err
}

func (a *app) readLots(f seedFlags) ([]seed.Row, error) {
	format, err := seed.FormatOf(f.file, f.format)
	if err != nil {
		return nil, err
	}
	columns, err := seed.ParseMap(f.pairs)
	if err != nil {
		return nil, err
	}
	name, in := "stdin", a.in
	if f.file != "-" {
		file, err := os.Open(f.file)
		if err != nil {
			return nil, fault.Wrap(fault.Usage, err, "the file cannot be read").WithField("file").WithHint("check the path and who may read it")
		}
		defer func() { _ = file.Close() }()
		name, in = f.file, io.Reader(file)
	}
	rows, err := seed.Read(in, seed.Input{Name: name, Format: format, Map: columns})
	a.problems(name+":", err)
	return rows, err
}

// problems lists what is wrong with an input where the error that follows has room for the first only.
func (a *app) problems(where string, err error) {
	list := fault.ProblemsOf(err)
	if len(list) < 2 || a.jsonErrors() {
		return // JSON errors carry the list in their details
	}
	for _, p := range list {
		place := where
		if p.Line > 0 {
			place = fmt.Sprintf("%s%d:%d: ", where, p.Line, p.Column)
		}
		a.say("%s\n", render.Clean(place+p.Message))
	}
}

// seedView is one lot of the plan or of the outcome.
type seedView struct {
	seed.Item
	Summary string `json:"summary" table:"DETAIL"` // the changes or the failure, for people
}

// seed plans and applies, and prints every lot also when some of them failed.
func (a *app) seed(ctx context.Context, rows []seed.Row, o seed.Options) error {
	l, s, err := a.openStores(ctx)
	if err != nil {
		return err
	}
	defer l.Close()
	defer func() { _ = s.Close() }()
	if !o.DryRun {
		a.note("target: %s on %s, %s", seedSubject(rows), s.Target(), l.Target())
	}
	o.Actor, o.Installation = a.cfg.Actor, l.Installation().ID
	items, err := seed.Run(ctx, rows, wire.SeedStock(s), wire.SeedLedger(l), o)
	if len(items) == 0 {
		return err
	}
	views := make([]seedView, len(items))
	for i, it := range items {
		views[i] = seedView{it, it.Summary()}
	}
	if printErr := a.print(views); printErr != nil {
		return printErr
	}
	for _, it := range items { // the error that follows has room for the hint of one lot
		if it.Hint != "" && it.Hint != fault.HintOf(err) && !strings.HasPrefix(fault.HintOf(err), it.Hint+";") {
			a.note("%s: %s", it.Lot, it.Hint)
		}
	}
	return err
}

func seedSubject(rows []seed.Row) string {
	if len(rows) == 1 {
		return "lot " + string(rows[0].Definition.Lot)
	}
	return fmt.Sprintf("%d lots", len(rows))
}

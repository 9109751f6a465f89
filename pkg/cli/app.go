package cli

import (
	"context"
	"io"
	"log/slog"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/render"
	"github.com/dropctl/dropctl/pkg/term"
)

// app is what all commands share during one run. Settings are there once a command runs; servers are
// only dialled by the commands that need them. It is used by one goroutine, apart from its logger.
type app struct {
	args   []string
	in     io.Reader
	stdout io.Writer
	err    io.Writer
	getenv func(string) string

	configFile string // --config
	fields     []string
	jq         string
	noHeaders  bool

	cfg     *config.Config
	out     *render.Printer
	outTerm term.Stream
	errTerm term.Stream

	started bool // a command's own code runs: errors are no longer about usage
	private int  // process of the PostgreSQL that this command started for itself; 0: none
	acts    bool // it may change something: it has a --dry-run and was not asked for one
	notesMu sync.Mutex
	notes   []string // held back while stderr has to stay one JSON object
	helpErr error    // help was asked for something that does not exist
}

func newApp(args []string, s Streams) *app {
	a := &app{args: args, in: s.In, stdout: s.Out, err: s.Err, getenv: s.Getenv}
	a.look(term.Auto)
	return a
}

func (a *app) look(color string) {
	a.outTerm = term.Look(a.stdout, color, a.getenv)
	a.errTerm = term.Look(a.err, color, a.getenv)
}

// needsNoConfig marks commands that have to work even when the config file is broken. They say nothing of a
// file found in the usual places, and warn of one that was named.
var needsNoConfig = map[string]string{"config": "none"}

// prepare resolves settings and output before a command runs. It is the only place that does.
func (a *app) prepare(cmd *cobra.Command) error {
	if cmd.Name() == cobra.ShellCompRequestCmd {
		return nil // completion resolves settings only where it asks a server
	}
	if err := a.resolve(cmd); err != nil {
		return err
	}
	a.look(a.cfg.Color)
	out, err := render.New(cmd.Context(), a.stdout, render.Options{
		Format: render.Format(a.cfg.Output), Fields: a.fields, JQ: a.jq, NoHeaders: a.noHeaders, Stream: a.outTerm,
	})
	if err != nil {
		return err
	}
	a.out = out
	if err := a.checkOutput(cmd); err != nil {
		return err
	}
	for _, w := range a.cfg.Warnings() {
		a.note("warning: %s", w)
	}
	return nil
}

func (a *app) resolve(cmd *cobra.Command) error {
	fromEnv, err := config.ApplyEnv(cmd.Flags(), a.getenv)
	if err != nil {
		return err
	}
	src := config.Sources{Flags: cmd.Flags(), EnvFlags: fromEnv, Getenv: a.getenv, File: a.configFile}
	cfg, err := config.Resolve(src)
	var ignored error
	if err != nil && cmd.Annotations["config"] == "none" {
		ignored, src.File = err, "none"
		cfg, err = config.Resolve(src)
	}
	if err == nil && cmd.Annotations["config"] != "none" {
		err = drop.CheckText("actor", cfg.Actor, false)
	}
	if err != nil {
		return err
	}
	a.cfg = cfg
	if ignored != nil && a.configFile != "" { // somebody named this file: it must not pass in silence
		a.note("warning: the config file is not used: %s", ignored)
	}
	return nil
}

// bounded returns a context that ends after --timeout; its error then names that flag.
func (a *app) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, a.cfg.Timeout,
		fault.New(fault.Unavailable, "no answer within --timeout %s", a.cfg.Timeout))
}

// jsonErrors reports whether errors go out as JSON. It also works before settings are resolved, because
// a broken command line has to be answered in the format its author reads.
func (a *app) jsonErrors() bool {
	format := a.getenv(config.EnvName("output"))
	if a.cfg != nil {
		format = a.cfg.Output
	} else if typed := typedValue(a.args, "--output", "-o"); typed != "" {
		format = typed
	}
	return format == string(render.JSON) || format == string(render.JSONL)
}

func (a *app) wantsDebug() bool {
	if a.cfg != nil {
		return a.cfg.Debug
	}
	return typedValue(append(a.args, ""), "--debug", "--debug") != "" || a.getenv(config.EnvName("debug")) != ""
}

// typedValue finds a flag's value among arguments that could not be parsed.
func typedValue(args []string, long, short string) string {
	for i, arg := range args {
		if value, ok := strings.CutPrefix(arg, long+"="); ok {
			return value
		}
		if (arg == long || arg == short) && i+1 < len(args) {
			return args[i+1]
		}
		if value, ok := strings.CutPrefix(arg, short); ok && value != "" && !strings.HasPrefix(arg, "--") {
			return strings.TrimPrefix(value, "=")
		}
	}
	return ""
}

// logger returns the log on stderr. One-shot commands log only with --verbose or --debug; services
// (serve, worker) always do, from --log-level on.
func (a *app) logger(service bool) *slog.Logger { return a.loggerTo(a.err, service) }

func (a *app) loggerTo(out io.Writer, service bool) *slog.Logger {
	if !service && !a.cfg.Verbose && !a.cfg.Debug {
		return slog.New(slog.DiscardHandler)
	}
	var level slog.Level
	_ = level.UnmarshalText([]byte(a.cfg.LogLevel)) // config allows only slog's names
	if a.cfg.Debug {
		level = slog.LevelDebug
	}
	o := &slog.HandlerOptions{Level: level}
	if a.cfg.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(out, o))
	}
	return slog.New(slog.NewTextHandler(out, o))
}

package cli

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/fault"
)

// talker is a command that says where it acts, asks, and ends as it is told.
func talker(a **app, end error) *cobra.Command {
	return &cobra.Command{Use: "talk", RunE: func(cmd *cobra.Command, _ []string) error {
		(*a).note("target: lot truffle-99 on %s", config.NewURL("redis://:hunter2@h"))
		if err := (*a).confirm(cmd.Context(), "Close truffle-99?"); err != nil {
			return err
		}
		return end
	}}
}

func talk(t *testing.T, end error, args ...string) result {
	t.Helper()
	var out, errs bytes.Buffer
	getenv := func(name string) string {
		return map[string]string{"DROPCTL_CONFIG": "none"}[name]
	}
	args = append([]string{"talk"}, args...)
	a := newApp(args, Streams{In: strings.NewReader("y\n"), Out: &out, Err: &errs, Getenv: getenv})
	root := newRoot(a)
	cmd := talker(&a, end)
	finishLeaf(a, cmd)
	root.AddCommand(cmd)
	exit := a.execute(t.Context(), root, args)
	return result{exit, out.String(), errs.String()}
}

func TestNobodyIsAskedOffATerminal(t *testing.T) {
	r := talk(t, nil)
	if r.exit != 2 || !strings.Contains(r.err, "(needs_confirmation)") || !strings.Contains(r.err, "--yes") {
		t.Errorf("exit %d, %s", r.exit, r.err)
	}
	if r := talk(t, nil, "-y"); r.exit != 0 {
		t.Errorf("with -y: exit %d, %s", r.exit, r.err)
	}
}

func TestTheTargetIsNamedFirst(t *testing.T) {
	r := talk(t, nil, "--yes")
	if r.err != "target: lot truffle-99 on redis://:[redacted]@h\n" {
		t.Errorf("got %q", r.err)
	}
	if r := talk(t, nil, "--yes", "-q"); r.err != "" {
		t.Errorf("quiet: %q", r.err)
	}
}

func TestNotesStayOutOfTheWayOfJSON(t *testing.T) {
	if r := talk(t, nil, "--yes", "-o", "json"); !strings.HasPrefix(r.err, "target: ") {
		t.Errorf("after a success: %q", r.err)
	}
	r := talk(t, fault.New(fault.SoldOut, "no <unit> left").With("available", 0), "--yes", "-o", "json")
	v := r.errorObject(t)
	if v.Code != fault.SoldOut || len(v.Notes) != 1 || v.Details["available"] != 0.0 || !strings.Contains(r.err, "<unit>") {
		t.Errorf("got %s", r.err)
	}
	if r := talk(t, nil, "-o", "json"); r.errorObject(t).Code != fault.NeedsConfirm {
		t.Errorf("got %s", r.err)
	}
}

func TestDetailsThatJSONCannotSay(t *testing.T) {
	r := talk(t, fault.New(fault.Failed, "odd").With("channel", make(chan int)), "--yes", "-o", "json")
	if v := r.errorObject(t); v.Message != "odd" {
		t.Errorf("got %s", r.err)
	}
}

func TestHostileErrorText(t *testing.T) {
	r := talk(t, fault.New(fault.NotFound, "lot \x1b[2Ja\nhint: rm -rf"), "--yes")
	if strings.Contains(r.err, "\x1b") || strings.Contains(r.err, "\nhint: rm") {
		t.Errorf("got %q", r.err)
	}
}

func TestLogger(t *testing.T) {
	cases := []struct {
		cfg     config.Config
		service bool
		info    bool
		debug   bool
		json    bool
	}{
		{cfg: config.Config{LogLevel: "info"}},
		{cfg: config.Config{LogLevel: "info", Verbose: true}, info: true},
		{cfg: config.Config{LogLevel: "info", Debug: true}, info: true, debug: true},
		{cfg: config.Config{LogLevel: "info"}, service: true, info: true},
		{cfg: config.Config{LogLevel: "warn"}, service: true},
		{cfg: config.Config{LogLevel: "debug", LogFormat: "json"}, service: true, info: true, debug: true, json: true},
	}
	for _, c := range cases {
		var errs bytes.Buffer
		a := &app{err: &errs, cfg: &c.cfg}
		log := a.logger(c.service)
		log.Info("hello", "url", config.NewURL("redis://:hunter2@h"))
		log.Debug("details")
		text := errs.String()
		if strings.Contains(text, "hello") != c.info || strings.Contains(text, "details") != c.debug || strings.Contains(text, "hunter2") {
			t.Errorf("%+v, service %v: %q", c.cfg, c.service, text)
		}
		first, _, _ := strings.Cut(text, "\n")
		if c.json != json.Valid([]byte(first)) {
			t.Errorf("%+v: %q", c.cfg, text)
		}
		if log.Enabled(t.Context(), slog.LevelDebug) != c.debug {
			t.Errorf("%+v: debug enabled", c.cfg)
		}
	}
}

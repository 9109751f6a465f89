package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/render"
	"github.com/dropctl/dropctl/pkg/term"
)

// say writes to stderr. When even that fails there is nobody left to tell.
func (a *app) say(format string, args ...any) { _, _ = fmt.Fprintf(a.err, format, args...) }

// note tells a person something on stderr; --quiet silences it. With -o json stderr has to stay one
// object, so notes wait: they follow a success, and become part of a failure's object. It may be called by many at once.
func (a *app) note(format string, args ...any) {
	if a.cfg != nil && a.cfg.Quiet {
		return
	}
	text := render.Clean(fmt.Sprintf(format, args...))
	if a.jsonErrors() {
		a.notesMu.Lock()
		a.notes = append(a.notes, text)
		a.notesMu.Unlock()
		return
	}
	a.say("%s\n", text)
}

func (a *app) releaseNotes() {
	for _, n := range a.notes {
		a.say("%s\n", n)
	}
	a.notes = nil
}

// confirm asks before something is destroyed or stopped; the answer is No unless the user says yes.
// Without anybody to ask it fails with needs_confirmation and never waits.
func (a *app) confirm(ctx context.Context, question string) error {
	if a.cfg.Yes {
		return nil
	}
	if a.cfg.NoInput || a.jsonErrors() || !a.errTerm.TTY || !term.Look(a.in, term.Never, a.getenv).TTY {
		what, _, _ := strings.Cut(question, "?")
		return fault.New(fault.NeedsConfirm, "%s: this has to be confirmed, and nobody can be asked here", what)
	}
	a.say("%s [y/N] ", render.Clean(question))
	answer := make(chan string, 1)
	go func() { // a read from a terminal cannot be cancelled; it ends with the process
		line, _ := bufio.NewReader(a.in).ReadString('\n')
		answer <- line
	}()
	select {
	case <-ctx.Done():
		a.say("\n")
		return ctx.Err()
	case line := <-answer:
		switch strings.ToLower(strings.TrimSpace(line)) {
		case "y", "yes":
			return nil
		}
		return fault.New(fault.NeedsConfirm, "not confirmed, nothing was changed").
			WithHint("run it again and answer y, or use --yes")
	}
}

// errorView is the contract of errors with -o json.
type errorView struct {
	Code    fault.Code     `json:"code"`
	Message string         `json:"message"`
	Hint    string         `json:"hint"`
	Exit    fault.Exit     `json:"exit"`
	Field   string         `json:"field,omitempty"`
	Details map[string]any `json:"details,omitempty"`
	Notes   []string       `json:"notes,omitempty"`
}

// printError writes an error to stderr, as two lines or as one JSON object.
func (a *app) printError(err error) {
	f := fault.As(err)
	if a.jsonErrors() {
		view := errorView{f.Code, f.Error(), fault.HintOf(f), fault.ExitOf(f), f.Field, f.Details, a.notes}
		enc := json.NewEncoder(a.err)
		enc.SetEscapeHTML(false)
		if enc.Encode(view) == nil {
			return
		}
		view.Details = nil // holds something JSON cannot say; the rest matters more
		_ = enc.Encode(view)
		return
	}
	a.say("%s %s (%s)\n", a.errTerm.Paint(term.Bad, "dropctl:"), render.Clean(f.Error()), f.Code)
	if hint := fault.HintOf(f); hint != "" {
		a.say("%s %s\n", a.errTerm.Paint(term.Strong, "hint:"), render.Clean(hint))
	}
}

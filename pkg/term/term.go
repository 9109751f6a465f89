// Package term decides, for each stream by itself, whether it is a terminal, whether it gets colour and
// how wide it is. Nothing else in dropctl looks at NO_COLOR and its relatives.
package term

import (
	"io"
	"os"

	"github.com/charmbracelet/lipgloss"
	"github.com/muesli/termenv"
	xterm "golang.org/x/term"
)

// Colour modes, the values of --color.
const (
	Auto   = "auto"
	Always = "always"
	Never  = "never"
)

// defaultWidth is used where the width is unknown: what a plain terminal has.
const defaultWidth = 80

// Stream is what dropctl knows of one stream. It is a value; copy it freely.
type Stream struct {
	TTY    bool // a person may be reading (or typing)
	Colour bool // colour was allowed
	Width  int  // columns; 80 where unknown
}

// Look inspects a stream. mode is the value of --color; getenv looks up the environment.
// Streams other than *os.File are never terminals.
func Look(stream any, mode string, getenv func(string) string) Stream {
	s := Stream{Width: defaultWidth}
	if f, ok := stream.(*os.File); ok && f != nil {
		s.TTY = xterm.IsTerminal(int(f.Fd()))
		if w, _, err := xterm.GetSize(int(f.Fd())); err == nil && w > 0 {
			s.Width = w
		}
	}
	s.Colour = wantColour(mode, s.TTY, getenv)
	return s
}

// wantColour: the flag wins, then NO_COLOR, then CLICOLOR_FORCE, then what the terminal can do.
func wantColour(mode string, tty bool, getenv func(string) string) bool {
	switch {
	case mode == Always:
		return true
	case mode == Never, getenv("NO_COLOR") != "":
		return false
	case getenv("CLICOLOR_FORCE") != "" && getenv("CLICOLOR_FORCE") != "0":
		return true
	case getenv("TERM") == "dumb":
		return false
	}
	return tty
}

// Renderer returns a lipgloss renderer with a fixed colour profile, so that lipgloss neither reads the
// environment nor asks the terminal anything.
func (s Stream) Renderer() *lipgloss.Renderer {
	profile := termenv.Ascii
	if s.Colour {
		profile = termenv.ANSI
	}
	r := lipgloss.NewRenderer(io.Discard, termenv.WithProfile(profile))
	r.SetColorProfile(profile)
	r.SetHasDarkBackground(true)
	return r
}

// Tone is a meaning that colour can carry. Colour only repeats what the words say.
type Tone int

// The tones.
const (
	Plain Tone = iota
	Strong
	Faint
	Good
	Warn
	Bad
)

// Paint returns text in the tone, unchanged if the stream has no colour.
func (s Stream) Paint(tone Tone, text string) string {
	if !s.Colour || tone == Plain || text == "" {
		return text
	}
	return s.Style(tone).Render(text)
}

// Style returns the lipgloss style of a tone on this stream.
func (s Stream) Style(tone Tone) lipgloss.Style {
	style := s.Renderer().NewStyle()
	switch tone {
	case Strong:
		return style.Bold(true)
	case Faint:
		return style.Faint(true)
	case Good:
		return style.Foreground(lipgloss.Color("2"))
	case Warn:
		return style.Foreground(lipgloss.Color("3"))
	case Bad:
		return style.Foreground(lipgloss.Color("1")).Bold(true)
	}
	return style
}

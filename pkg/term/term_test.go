package term

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

func TestColourDecision(t *testing.T) {
	cases := []struct {
		name string
		mode string
		tty  bool
		env  map[string]string
		want bool
	}{
		{"terminal", Auto, true, nil, true},
		{"pipe", Auto, false, nil, false},
		{"flag never beats everything", Never, true, map[string]string{"CLICOLOR_FORCE": "1"}, false},
		{"flag always beats NO_COLOR", Always, false, map[string]string{"NO_COLOR": "1"}, true},
		{"NO_COLOR with any value", Auto, true, map[string]string{"NO_COLOR": "yes"}, false},
		{"NO_COLOR 0 is a value too", Auto, true, map[string]string{"NO_COLOR": "0"}, false},
		{"NO_COLOR beats CLICOLOR_FORCE", Auto, true, map[string]string{"NO_COLOR": "1", "CLICOLOR_FORCE": "1"}, false},
		{"forced on a pipe", Auto, false, map[string]string{"CLICOLOR_FORCE": "2"}, true},
		{"force 0 is no force", Auto, false, map[string]string{"CLICOLOR_FORCE": "0"}, false},
		{"dumb terminal", Auto, true, map[string]string{"TERM": "dumb"}, false},
		{"force on a dumb terminal", Auto, true, map[string]string{"TERM": "dumb", "CLICOLOR_FORCE": "1"}, true},
		{"no mode is auto", "", true, nil, true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			getenv := func(k string) string { return c.env[k] }
			if got := wantColour(c.mode, c.tty, getenv); got != c.want {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

func TestLookAtWhatIsNoTerminal(t *testing.T) {
	file, err := os.Create(t.TempDir() + "/out")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	var none *os.File
	for _, stream := range []any{file, new(bytes.Buffer), nil, none} {
		s := Look(stream, Auto, func(string) string { return "" })
		if s.TTY || s.Colour || s.Width != defaultWidth {
			t.Errorf("%T: got %+v", stream, s)
		}
	}
}

func TestPaint(t *testing.T) {
	if got := (Stream{}).Paint(Bad, "x"); got != "x" {
		t.Errorf("without colour: %q", got)
	}
	got := Stream{Colour: true}.Paint(Bad, "x")
	if !strings.Contains(got, "\x1b[") || !strings.Contains(got, "x") {
		t.Errorf("with colour: %q", got)
	}
	if (Stream{Colour: true}).Paint(Plain, "x") != "x" {
		t.Error("plain text got colour")
	}
}

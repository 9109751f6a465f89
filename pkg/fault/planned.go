package fault

import "strings"

// planned lists the commands and flags that are to come, each with what holds until then. It is the one place that
// knows them; an entry leaves it when its command comes.
var planned = map[string]string{
	"restore":       "until then the lot stays closed",
	"serve":         "",
	"outbox":        "",
	"ledger":        "",
	"metrics":       "",
	"simulate":      "",
	"key":           "",
	"hook":          "",
	"lot archive":   "",
	"bench compare": "",
	"bench report":  "",
}

// Planned reports whether a command, without the program's name, or one of its flags is to come.
func Planned(command string) bool {
	_, ok := planned[command]
	return ok
}

// Announce returns a text that names commands; of one that is to come it says so, once.
func Announce(text string) string {
	for command, until := range planned {
		if !strings.Contains(text, "dropctl "+command) {
			continue
		}
		note := " (" + command + " comes in a later version"
		if until != "" {
			note += "; " + until
		}
		if note += ")"; !strings.Contains(text, note) {
			text += note
		}
	}
	return text
}

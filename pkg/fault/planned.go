package fault

import "strings"

// planned lists the commands and flags that are to come. It is the one place that knows them; an entry leaves it when its
// command comes.
var planned = map[string]bool{}

// Planned reports whether a command, without the program's name, or one of its flags is to come.
func Planned(command string) bool { return planned[command] }

// Announce returns a text that names commands; of one that is to come it says so, once.
func Announce(text string) string {
	for command := range planned {
		note := " (" + command + " comes in a later version)"
		if strings.Contains(text, "dropctl "+command) && !strings.Contains(text, note) {
			text += note
		}
	}
	return text
}

// Package lua embeds the Redis scripts. Each is a file with a header contract; common.lua stands before every one but
// the fence.
package lua

import (
	"embed"
	"strings"
)

//go:embed *.lua
var files embed.FS

// Names of the scripts.
const (
	Reserve  = "reserve"
	Settle   = "settle"
	Sweep    = "sweep"
	Load     = "load"
	Change   = "change"
	Snapshot = "snapshot"
	Door     = "door"
	Trim     = "trim"
	Leave    = "leave"
	Freeze   = "freeze"
	Fence    = "fence"
	Stage    = "stage"
	Remove   = "remove"
	Repair   = "repair"
	Renew    = "renew"
)

// Names lists every script.
func Names() []string {
	return []string{Reserve, Settle, Sweep, Load, Change, Snapshot, Door, Trim, Leave, Freeze, Fence, Stage, Remove, Repair, Renew}
}

// Source returns a script as Redis gets it: its shebang line, the shared part, its own part.
func Source(name string) string {
	if name == Fence {
		return read(name)
	}
	shebang, body, _ := strings.Cut(read(name), "\n")
	return shebang + "\n" + read("common") + body
}

// read returns an embedded file. It is there: the names above are checked by a test.
func read(name string) string {
	b, _ := files.ReadFile(name + ".lua")
	return string(b)
}

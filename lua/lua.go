// Package lua embeds the Redis scripts. Each is a file with a header contract; common.lua stands before every one.
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
)

// Names lists every script.
func Names() []string {
	return []string{Reserve, Settle, Sweep, Load, Change, Snapshot, Door, Trim}
}

// Source returns a script as Redis gets it: its shebang line, the shared part, its own part. It panics on an unknown name.
func Source(name string) string {
	shebang, body, ok := strings.Cut(read(name), "\n")
	if !ok || !strings.HasPrefix(shebang, "#!lua") {
		panic("lua: " + name + " has no shebang")
	}
	return shebang + "\n" + read("common") + body
}

func read(name string) string {
	b, err := files.ReadFile(name + ".lua")
	if err != nil {
		panic("lua: " + err.Error())
	}
	return string(b)
}

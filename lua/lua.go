// Package lua embeds the Redis scripts. Each is a file with a header contract and a function run; common.lua has what
// they share.
package lua

import (
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"fmt"
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
	File     = "file"
)

// Names lists every script.
func Names() []string {
	return []string{Reserve, Settle, Sweep, Load, Change, Snapshot, Door, Trim, Leave, Freeze, Fence, Stage, Remove, Repair, Renew, File}
}

// Prefix begins the name of every version of the library.
const Prefix = "dropctl_"

// Library returns the library of Redis Functions with all scripts, and its name. The name has a hash of the content, and
// so have the functions': versions live side by side, and one of a name is never another.
//
// As functions, the scripts are built once, when Redis loads the library. Redis builds what a plain script consists of
// for each call, which takes longer than most calls.
func Library() (name, source string) {
	var body strings.Builder
	body.WriteString(read("common"))
	hash := sha1.New()
	for _, s := range Names() {
		hash.Write([]byte(read(s)))
	}
	hash.Write([]byte(read("common")))
	name = Prefix + hex.EncodeToString(hash.Sum(nil))[:16]
	for _, s := range Names() {
		shebang, script, _ := strings.Cut(read(s), "\n")
		_, flag, _ := strings.Cut(shebang, "flags=")
		fmt.Fprintf(&body, "do\n%s\nredis.register_function { function_name = '%s', flags = { %s }, callback = function(keys, argv) begin(keys, argv) return run() end }\nend\n",
			script, Function(name, s), quoted(flag))
	}
	return name, "#!lua name=" + name + "\n" + body.String()
}

func quoted(flag string) string {
	if flag == "" {
		return ""
	}
	return "'" + flag + "'"
}

// Function returns what a script is called as, in a library.
func Function(library, script string) string { return library + "_" + script }

// Source returns a script that needs no library, for a server that does not have it (yet): its shebang line, the shared
// part, its own part.
func Source(name string) string {
	shebang, script, _ := strings.Cut(read(name), "\n")
	return shebang + "\nlocal keys, argv = KEYS, ARGV\n" + read("common") + script + "\nbegin(keys, argv)\nreturn run()\n"
}

// read returns an embedded file. It is there: the names above are checked by a test.
func read(name string) string {
	b, _ := files.ReadFile(name + ".lua")
	return string(b)
}

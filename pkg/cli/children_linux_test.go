package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// children counts the child processes of this process.
func children(t *testing.T) int {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		if err != nil { // it has ended
			continue
		}
		// pid (name) state ppid …; a name may hold anything.
		_, rest, _ := strings.Cut(string(stat[strings.LastIndexByte(string(stat), ')')+1:]), " ")
		var state string
		var parent int
		if _, err := fmt.Sscan(rest, &state, &parent); err == nil && parent == os.Getpid() {
			count++
		}
	}
	return count
}

package bench

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/dropctl/dropctl/pkg/fault"
)

// CPUOf returns the processor time of a process and all its children, those that have ended included. It is an error where
// the system does not tell, which is anywhere but on Linux.
func CPUOf(pid int) (time.Duration, error) {
	own, err := readTimes(fmt.Sprintf("/proc/%d/stat", pid))
	for range 10 {
		if err != nil {
			return 0, err
		}
		before := own
		total, wrong := childrenOf(pid)
		if wrong != nil {
			return 0, wrong
		}
		// A child that ends while we look is missed here, and its parent has it only now.
		if own, err = readTimes(fmt.Sprintf("/proc/%d/stat", pid)); err == nil && own.ended == before.ended {
			return time.Duration(total+own.used+own.ended) * (time.Second / 100), nil
		}
	}
	return 0, fault.New(fault.Failed, "process %d has children that come and go too quickly to tell what they use", pid)
}

// childrenOf adds up what the living children of a process have used.
func childrenOf(pid int) (total int64, err error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		if child, err := readTimes(path); err == nil && child.parent == pid {
			total += child.used
		}
	}
	return total, err
}

// times are what a process has used, in hundredths of a second.
type times struct {
	parent      int
	used, ended int64 // by itself, and by children that have ended
}

// readTimes reads a file as proc(5) describes it: the name in parentheses may hold anything.
func readTimes(path string) (times, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return times{}, err
	}
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	if len(fields) < 15 {
		return times{}, fault.New(fault.Failed, "%s is not as expected", path)
	}
	number := func(i int) int64 { n, _ := strconv.ParseInt(string(fields[i]), 10, 64); return n }
	return times{parent: int(number(1)), used: number(11) + number(12), ended: number(13) + number(14)}, nil
}

package cli

import (
	"bytes"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/testkit"
)

// badPaper is a log that can hang and fail.
type badPaper struct {
	sharedBuffer
	hangs sync.Mutex // held while it hangs
	fails error
}

func (p *badPaper) Write(b []byte) (int, error) {
	p.hangs.Lock()
	defer p.hangs.Unlock()
	if p.fails != nil {
		return 0, p.fails
	}
	return p.sharedBuffer.Write(b)
}

// Whoever logs never waits for who writes, and what was lost is told once lines are written again.
func TestALogThatHangsOrFailsStopsNobody(t *testing.T) {
	paper := &badPaper{}
	g := gather(paper)
	told := make(chan int, 10)
	g.tell = func(lost int) { told <- lost }
	go g.run()
	line := append(bytes.Repeat([]byte("x"), 1023), '\n')
	paper.hangs.Lock()
	began := time.Now()
	const lines = 3 * logRoom >> 10
	for range lines {
		if n, err := g.Write(line); n != len(line) || err != nil {
			t.Fatal(n, err)
		}
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("%d lines took %v", lines, took)
	}
	paper.fails = errors.New("no space left")
	paper.hangs.Unlock()
	testkit.Eventually(t, 30*time.Second, func() (bool, string) {
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.lost == lines, "some lines still wait"
	})
	g.flush() // with nothing to write it is not forgotten
	paper.hangs.Lock()
	paper.fails = nil
	paper.hangs.Unlock()
	_, _ = g.Write([]byte("again\n"))
	if lost := <-told; lost != lines {
		t.Errorf("%d lines are told to be lost, of %d", lost, lines)
	}
	_, _ = g.Write([]byte("the end\n"))
	g.close()
	if got := paper.String(); got != "again\nthe end\n" {
		t.Errorf("the log is %.100q", got)
	}
}

func TestALogThatHangsHoldsUpNoEnd(t *testing.T) {
	paper := &badPaper{}
	g := gather(paper)
	go g.run()
	paper.hangs.Lock()
	defer func() { paper.hangs.Unlock(); <-g.over }()
	_, _ = g.Write([]byte(strings.Repeat("x", logChunk)))
	began := time.Now()
	g.close()
	if took := time.Since(began); took > logEnd+30*time.Second {
		t.Errorf("the end took %v", took)
	}
}

package worker

import (
	"fmt"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/recovery"
)

// TestWhatSomebodyMustActOnIsSaidAgain lets an hour of passes see the same findings: what passes by itself is said once, what
// does not once a minute, and what has gone and come back at once.
func TestWhatSomebodyMustActOnIsSaidAgain(t *testing.T) {
	foreign := recovery.Finding{Shard: 1, Action: recovery.Frozen, Reason: fault.Foreign}
	settling := recovery.Finding{Shard: 2, Action: recovery.Settling}
	late := recovery.Finding{Shard: 3, Action: recovery.Draining, Late: true}
	left := recovery.Finding{Shard: 4, Action: recovery.Left, Reason: fault.FreezeOperator}
	said, s := map[int]int{}, spoken{}
	now := time.Now()
	pass := func(complete bool, findings ...recovery.Finding) {
		for _, f := range s.news(findings, complete, now) {
			said[f.Shard]++
		}
		now = now.Add(time.Second)
	}
	for range 3600 {
		pass(true, foreign, settling, late, left)
	}
	if got := fmt.Sprint(said); got != "map[1:60 2:1 3:60 4:1]" {
		t.Errorf("said %s", got)
	}
	clear(said)
	pass(false) // that could not look everywhere
	pass(true, settling)
	pass(true, settling, left)
	if got := fmt.Sprint(said); got != "map[4:1]" {
		t.Errorf("then said %s", got)
	}
}

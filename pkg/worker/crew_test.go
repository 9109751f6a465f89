package worker

import (
	"fmt"
	"testing"
)

func TestShardsSpreadOverWorkers(t *testing.T) {
	const shards = 64
	crew := []string{"host-11-aaaa", "host-12-bbbb", "other-11-cccc", "other-7-dddd"}
	had := map[int]string{}
	load := map[string]int{}
	for shard := range shards {
		had[shard] = preferred(shard, crew)
		load[had[shard]]++
	}
	for _, one := range crew {
		if load[one] < shards/len(crew)/2 || load[one] > shards/len(crew)*2 {
			t.Errorf("of %d shards they have %v", shards, load)
		}
	}
	// The order in which the names come changes nothing, and one that goes gives its share to others, who keep theirs.
	rest := []string{crew[3], crew[0], crew[1]}
	for shard, before := range had {
		if now := preferred(shard, rest); now != before && before != crew[2] {
			t.Errorf("shard %d went from %s to %s, though %s left", shard, before, now, crew[2])
		}
	}
	if got := preferred(3, nil); got != "" {
		t.Errorf("of nobody it prefers %q", got)
	}
}

func TestWhoDoesNotKnowTheOthersReadsEverything(t *testing.T) {
	w := &Worker{me: Presence{Name: "me"}}
	for name, crew := range map[string][]string{"before the first heartbeat": nil, "forgotten by the others": {"a", "b", "c"}} {
		w.knowCrew(crew)
		for shard := range 32 {
			if !w.prefers(shard) {
				t.Errorf("%s: it leaves shard %d to others", name, shard)
			}
		}
	}
	w.knowCrew([]string{"me", "a"})
	mine := fmt.Sprint(w.prefers(0))
	for shard := range 32 {
		if fmt.Sprint(w.prefers(shard)) != mine {
			return
		}
	}
	t.Error("of two workers one has everything")
}

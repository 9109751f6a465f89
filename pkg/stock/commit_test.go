package stock

import (
	"context"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/testkit"
)

// waitingShards are shards in which so many requests wait.
func waitingShards(requests ...int64) (shards []*shard) {
	for i, n := range requests {
		sh := &shard{number: i}
		sh.length.Store(n)
		shards = append(shards, sh)
	}
	return shards
}

func repeated(n int, requests int64) (all []int64) {
	for range n {
		all = append(all, requests)
	}
	return all
}

func TestAPipelineTakesAPartOfWhatWaits(t *testing.T) {
	for name, c := range map[string]struct {
		waiting []int64
		want    int
	}{
		"nothing":                         {nil, 0},
		"one hot lot":                     {repeated(1, 250), 1},
		"a request each, all":             {repeated(16, 1), 16},
		"few in all":                      {repeated(3, 10), 3},
		"a fair pipeline":                 {repeated(16, 10), 4},
		"many each: an eighth":            {repeated(16, 100), 2},
		"very many shards":                {repeated(800, 5), 100},
		"no further one when it is full":  {repeated(64, 600), 1},
		"requests whose callers are gone": {repeated(4, 0), 4},
	} {
		n := &node{lanes: lanes{shards: waitingShards(c.waiting...), busy: map[*lane]time.Time{}}}
		all := append([]*shard(nil), n.lanes.shards...)
		l := &lane{}
		n.lanes.busy[l] = time.Now()
		got := n.take(l, nil)
		if len(got) != c.want || len(got)+len(n.lanes.shards) != len(all) {
			t.Errorf("%s: it took %d of %d, and %d are left", name, len(got), len(all), len(n.lanes.shards))
		}
		for i, sh := range append(got, n.lanes.shards...) {
			if sh != all[i] {
				t.Errorf("%s: not in order of arrival", name)
			}
		}
		if _, busy := n.lanes.busy[l]; busy != (c.want > 0) || len(n.lanes.idle) == 1 == busy {
			t.Errorf("%s: busy %v, idle %d", name, busy, len(n.lanes.idle))
		}
	}
}

// TestAPipelineTakesMoreWhereTheServerIsFar: what Redis can do in the time of the way is under way, and a slow answer is no longer way.
func TestAPipelineTakesMoreWhereTheServerIsFar(t *testing.T) {
	near := &lanes{}
	for _, took := range []time.Duration{0, 200 * time.Microsecond, time.Millisecond, time.Second, 99 * time.Millisecond} {
		if got := near.fair(took); got != fairPipeline {
			t.Errorf("after %s it takes %d", took, got)
		}
	}
	far := &lanes{}
	for _, took := range []time.Duration{6 * time.Millisecond, 5 * time.Millisecond, 9 * time.Millisecond} {
		if got := far.fair(took); got < 155 || got > 190 {
			t.Errorf("at %s it takes %d", took, got)
		}
	}
	for range 10 * wayMemory { // the server has moved away
		far.fair(20 * time.Millisecond)
	}
	if got := far.fair(20 * time.Millisecond); got < 600 {
		t.Errorf("at last it takes %d", got)
	}
}

func TestLanesAreAsManyAsShardsWait(t *testing.T) {
	now, longAgo := time.Now(), time.Now().Add(-time.Minute)
	for name, c := range map[string]struct {
		shards int
		others []time.Time
		enough bool
	}{
		"the first":                       {1, nil, false},
		"the second of one shard":         {1, []time.Time{now}, false},
		"the third of one shard":          {1, []time.Time{now, now}, true},
		"the third, where one hangs":      {1, []time.Time{now, longAgo}, false},
		"the third of many shards":        {16, []time.Time{now, now}, false},
		"the fifth":                       {16, []time.Time{now, now, now, now}, true},
		"the fifth, though the rest hang": {1, []time.Time{longAgo, longAgo, longAgo, now}, false},
	} {
		l := &lanes{shards: waitingShards(repeated(c.shards, 1)...), busy: map[*lane]time.Time{}}
		for _, since := range c.others {
			l.busy[&lane{}] = since
		}
		if l.enough(nil) != c.enough {
			t.Errorf("%s: enough is %v", name, !c.enough)
		}
	}
}

// TestNobodyWaitsForLanesThatHang: when the request came they were enough, and none comes after it.
func TestNobodyWaitsForLanesThatHang(t *testing.T) {
	s, _, _ := newShop(t)
	lot := newLot(t, s, drop.Definition{Lot: "l", Stock: 9})
	home := s.shardOf(lot).home.Load()
	testkit.Eventually(t, 20*time.Second, func() (bool, string) {
		home.lanes.mu.Lock()
		defer home.lanes.mu.Unlock()
		if len(home.lanes.busy) > 0 {
			return false, "a lane is still busy with the load"
		}
		for range lanesAtLeast {
			home.lanes.busy[&lane{}] = time.Now()
		}
		return true, ""
	})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := s.Reserve(ctx, drop.ReserveRequest{Lot: lot, User: "ann", Key: "k", Qty: 1}); err != nil {
		t.Fatal(err)
	}
}

// TestALaneIsMissedByNobody: it has left what waits to two others, which hang since.
func TestALaneIsMissedByNobody(t *testing.T) {
	s, _, _ := newShop(t)
	lot := newLot(t, s, drop.Definition{Lot: "l", Stock: 9})
	home := s.shardOf(lot).home.Load()
	leaving := &lane{stock: s, home: home}
	home.lanes.mu.Lock()
	for _, l := range []*lane{{}, {}, leaving} {
		home.lanes.busy[l] = time.Now()
	}
	home.lanes.mu.Unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var sold error
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		_, sold = s.Reserve(ctx, drop.ReserveRequest{Lot: lot, User: "ann", Key: "k", Qty: 1})
	}()
	waits := func() bool {
		home.lanes.mu.Lock()
		defer home.lanes.mu.Unlock()
		return len(home.lanes.shards) > 0
	}
	for over := false; !over && !waits(); { // on a slow machine the two hang already, and another lane takes it
		select {
		case <-answered:
			over = true
		case <-time.After(time.Millisecond):
		}
	}
	for _, sh := range home.take(leaving, nil) { // there too
		home.serve(sh)
	}
	<-answered
	if sold != nil {
		t.Fatal(sold)
	}
}

package stock

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/dropctl/dropctl/pkg/drop"
)

// maxHoldBytes is what a live hold may cost in Redis' memory: record, user counters and due entry; the outbox apart.
const maxHoldBytes = 350

func TestALiveHoldCostsLittleMemory(t *testing.T) {
	s, rdb, r := newShop(t)
	// The append-only file's buffers are not the holds' memory.
	if _, err := r.Do(t.Context(), "CONFIG", "SET", "appendonly", "no"); err != nil {
		t.Fatal(err)
	}
	lot := newLot(t, s, drop.Definition{Lot: "l", Stock: drop.MaxUnits, Limit: 4})
	reserve(t, s, lot, "first", "k", 1)
	before := usedMemory(t, s, rdb, lot)
	holds := int64(rounds(100_000, 20_000))
	const callers = 200
	inParallel(callers, func(c int) {
		for i := int64(c); i < holds; i += callers {
			q := drop.ReserveRequest{Lot: lot, User: fmt.Sprintf("customer-%07d", i), Key: fmt.Sprintf("checkout-%07d", i), Qty: 1, Actor: "shop"}
			if _, err := s.Reserve(t.Context(), q); err != nil {
				t.Error(err)
				return
			}
		}
	})
	each := (usedMemory(t, s, rdb, lot) - before) / holds
	t.Logf("a hold costs %d bytes (of %d holds)", each, holds)
	if each > maxHoldBytes {
		t.Errorf("a hold costs %d bytes, more than %d", each, maxHoldBytes)
	}
	if each < 100 {
		t.Errorf("a hold cannot cost %d bytes: the measurement is wrong", each)
	}
}

// usedMemory is the server's data without the shard's outbox and without the clients' buffers.
func usedMemory(t *testing.T, s *Stock, rdb *redis.Client, lot drop.LotID) int64 {
	t.Helper()
	info, err := rdb.Info(t.Context(), "memory").Result()
	if err != nil {
		t.Fatal(err)
	}
	number := func(field string) int64 {
		for line := range strings.Lines(info) {
			if text, ok := strings.CutPrefix(strings.TrimSpace(line), field+":"); ok {
				n, err := strconv.ParseInt(text, 10, 64)
				if err != nil {
					t.Fatal(err)
				}
				return n
			}
		}
		t.Fatalf("INFO has no %s", field)
		return 0
	}
	outbox, err := rdb.MemoryUsage(t.Context(), s.shardOf(lot).keys.outbox, 0).Result()
	if err != nil {
		t.Fatal(err)
	}
	return number("used_memory") - number("mem_clients_normal") - number("mem_aof_buffer") - outbox
}

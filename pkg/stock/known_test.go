package stock

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/testkit"
)

func wantUnknown(t testing.TB, s *Stock, lot drop.LotID, user, key string, want bool) {
	t.Helper()
	if got, err := s.Unknown(t.Context(), lot, user, key); err != nil || got != want {
		t.Errorf("lot %s, user %s, key %s: unknown is %v, %v", lot, user, key, got, err)
	}
}

// TestWhoeverIsOwedAnAnswerIsKnown walks a user through the life of a reservation, held alone and as one of a batch.
func TestWhoeverIsOwedAnAnswerIsKnown(t *testing.T) {
	s, _, _ := newShop(t)
	lot := newLot(t, s, drop.Definition{Lot: "truffle", Stock: 300, Limit: 5})
	wantUnknown(t, s, lot, "ann", "k", true)
	out, err := s.Reserve(t.Context(), one(lot, "ann"))
	if err != nil {
		t.Fatal(err)
	}
	wantUnknown(t, s, lot, "ann", "k", false)
	wantUnknown(t, s, lot, "ann", "another key", false) // her hold is the answer
	wantUnknown(t, s, lot, "bob", "k", true)
	if _, err := s.Settle(t.Context(), drop.SettleRequest{ID: out.Reservation.ID, Action: drop.ActRelease}); err != nil {
		t.Fatal(err)
	}
	wantUnknown(t, s, lot, "ann", "k", false) // her key names what she gave back
	inParallel(200, func(i int) {
		if _, err := s.Reserve(t.Context(), one(lot, "batch-"+strconv.Itoa(i))); err != nil {
			t.Error(err)
		}
	})
	for i := range 200 {
		wantUnknown(t, s, lot, "batch-"+strconv.Itoa(i), "k", false)
	}
	wantUnknown(t, s, lot, "batch-200", "k", true)
}

func TestALookIsRefusedAtTheDoorAsAScriptIs(t *testing.T) {
	s, rdb, _ := newShop(t)
	lot := newLot(t, s, drop.Definition{Lot: "truffle", Stock: 5})
	look := func(lot drop.LotID) error {
		_, err := s.Unknown(t.Context(), lot, "ann", "k")
		return err
	}
	reserve := func(lot drop.LotID) error {
		_, err := s.Reserve(t.Context(), one(lot, "ann"))
		return err
	}
	same := func(why string, lot drop.LotID, code fault.Code) {
		t.Helper()
		if got, want := look(lot), reserve(lot); !fault.Is(got, code) || got.Error() != want.Error() {
			t.Errorf("%s: a look says %v, a reservation %v", why, got, want)
		}
	}
	same("a lot that is not there", "truffle:other", fault.LotNotLoaded)
	seen, err := s.Lot(t.Context(), lot)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.FreezeLot(t.Context(), seen, fault.FreezeOperator); err != nil {
		t.Fatal(err)
	}
	same("a frozen lot", lot, fault.LotFrozen)
	if err := s.ThawLot(t.Context(), seen, fault.FreezeOperator); err != nil {
		t.Fatal(err)
	}
	wantUnknown(t, s, lot, "ann", "k", true)
	meta := s.shardOf(lot).keys.meta
	for field, code := range map[string]fault.Code{"owner": fault.Foreign, "run": fault.LotFrozen, "frozen": fault.LotFrozen} {
		before := rdb.HGet(t.Context(), meta, field).Val()
		rdb.HSet(t.Context(), meta, field, "other/9")
		same("another "+field, lot, code)
		rdb.HSet(t.Context(), meta, field, before)
	}
	rdb.Del(t.Context(), meta)
	same("an emptied shard", lot, fault.LotNotLoaded)
}

func TestALookAtADamagedLotFails(t *testing.T) {
	s, rdb, _ := newShop(t)
	lot := newLot(t, s, drop.Definition{Lot: "truffle", Stock: 5})
	other := newLot(t, s, drop.Definition{Lot: "truffle:other", Stock: 5})
	if err := rdb.Set(t.Context(), s.shardOf(lot).keys.lot(lot), "no hash", 0).Err(); err != nil {
		t.Fatal(err)
	}
	inParallel(20, func(i int) { // in one batch or not, the other lot is not to blame
		if _, err := s.Unknown(t.Context(), lot, strconv.Itoa(i), "k"); !fault.Is(err, fault.Failed) {
			t.Error(err)
		}
		wantUnknown(t, s, other, strconv.Itoa(i), "k", true)
	})
}

// TestManyLooksTravelTogether compares the answers to many callers with what is there, and counts the commands.
func TestManyLooksTravelTogether(t *testing.T) {
	s, rdb, _ := newShop(t)
	lots := make([]drop.LotID, 3)
	for i := range lots {
		lots[i] = newLot(t, s, drop.Definition{Lot: drop.LotID(fmt.Sprintf("truffle:%d", i)), Stock: 1000})
	}
	const users = 600
	inParallel(users, func(i int) {
		if i%3 == 0 {
			if _, err := s.Reserve(t.Context(), one(lots[i%2], strconv.Itoa(i))); err != nil {
				t.Error(err)
			}
		}
	})
	before := calls(t, rdb, "hmget")
	const rounds = 5
	inParallel(users, func(i int) {
		for range rounds {
			for n, lot := range lots {
				wantUnknown(t, s, lot, strconv.Itoa(i), "k", i%3 != 0 || i%2 != n)
			}
		}
	})
	const looks = rounds * 3 * users
	if sent := calls(t, rdb, "hmget") - before; sent > looks/10 {
		t.Errorf("%d commands for %d looks", sent, looks)
	}
}

// calls returns how often a command was called, as the server counts.
func calls(t testing.TB, rdb *redis.Client, command string) int {
	t.Helper()
	info, err := rdb.Info(context.Background(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(readInfo(info)["cmdstat_"+command], "calls=")
	text, _, _ := strings.Cut(rest, ",")
	n, _ := strconv.Atoi(text)
	return n
}

// TestALookEndsWithItsCaller: one that is given up is not sent, and those of others are answered.
func TestALookEndsWithItsCaller(t *testing.T) {
	r := testkit.Redis(t)
	proxy := testkit.Proxy(t, r.Addr())
	s := openStock(t, proxy.URL(t, r.URL()), func(o *Options) { o.Timeout = 10 * time.Second })
	lot := newLot(t, s, drop.Definition{Lot: "truffle", Stock: 5})
	wantUnknown(t, s, lot, "ann", "k", true)
	proxy.CutReplies()
	var others sync.WaitGroup
	others.Go(func() { wantUnknown(t, s, lot, "ann", "k", true) })
	inParallel(20, func(i int) {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := s.Unknown(ctx, lot, strconv.Itoa(i), "k"); !fault.Is(err, fault.Unavailable) {
			t.Error(err)
		}
	})
	others.Go(func() { wantUnknown(t, s, lot, "bob", "k", true) })
	proxy.Heal()
	others.Wait()
}

func TestALookSurvivesLostConnections(t *testing.T) {
	r := testkit.Redis(t)
	proxy := testkit.Proxy(t, r.Addr())
	s := openStock(t, proxy.URL(t, r.URL()))
	lot := newLot(t, s, drop.Definition{Lot: "truffle", Stock: 5})
	wantUnknown(t, s, lot, "ann", "k", true)
	proxy.DropReplies()
	if _, err := s.Unknown(t.Context(), lot, "ann", "k"); !fault.Is(err, fault.Unavailable) {
		t.Error(err) // not of unknown outcome: a look has none
	}
	proxy.Heal()
	wantUnknown(t, s, lot, "ann", "k", true)
}

// BenchmarkKnown looks up callers of a lot that is sold out, beside the reservation that would refuse them: how much of
// Redis' processor each takes.
func BenchmarkKnown(b *testing.B) {
	r := testkit.Redis(b)
	s := openStock(b, r.SocketURL())
	lot := newLot(b, s, drop.Definition{Lot: "truffle", Stock: 5000, Limit: 1})
	inParallel(5000, func(i int) { _, _ = s.Reserve(b.Context(), one(lot, strconv.Itoa(i))) })
	for name, call := range map[string]func(user string) error{
		"look": func(user string) error { _, err := s.Unknown(b.Context(), lot, user, "k"); return err },
		"refused": func(user string) error {
			if _, err := s.Reserve(b.Context(), one(lot, user)); !fault.Is(err, fault.SoldOut) {
				return fmt.Errorf("%w, not sold out", err)
			}
			return nil
		},
	} {
		b.Run(name, func(b *testing.B) {
			before := processor(b, r)
			var next atomic.Int64
			b.SetParallelism(128)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if err := call("new-" + strconv.FormatInt(next.Add(1), 10)); err != nil {
						b.Error(err)
						return
					}
				}
			})
			b.ReportMetric(float64((processor(b, r)-before).Nanoseconds())/1e3/float64(b.N), "redis-µs/op")
		})
	}
}

// processor returns how much of its processor a server has used.
func processor(t testing.TB, r *lab.Redis) time.Duration {
	t.Helper()
	info, err := r.Do(context.Background(), "INFO", "cpu")
	if err != nil {
		t.Fatal(err)
	}
	fields := readInfo(info)
	user, err1 := strconv.ParseFloat(fields["used_cpu_user"], 64)
	system, err2 := strconv.ParseFloat(fields["used_cpu_sys"], 64)
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	return time.Duration((user + system) * 1e9)
}

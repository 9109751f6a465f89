package stock

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dropctl/dropctl/lua"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/testkit"
)

// scene is two lots of one shard with a reservation in every state, kept so that each case can start from it.
type scene struct {
	s    *Stock
	rdb  *redis.Client
	door [3]string
	kept map[string]string
}

const (
	sceneLot  = drop.LotID("g:l")
	otherLot  = drop.LotID("g:m")
	sceneFree = 1 // units available in each
)

// newScene sets the stage. In each lot ann's hold (2 units) is due or not, bob's (1) runs, cy (2) has confirmed, dan's is
// released, eve's (1) expired, fay's refunded.
func newScene(t *testing.T, due bool) *scene {
	s, rdb, _ := newShop(t)
	sc := &scene{s: s, rdb: rdb}
	info, err := rdb.Info(t.Context(), "server").Result()
	if err != nil {
		t.Fatal(err)
	}
	sc.door = [3]string{readInfo(info)["run_id"], s.owner(), s.retentionMS()}
	lots := []drop.LotID{sceneLot, otherLot}
	for _, lot := range lots {
		newLot(t, s, drop.Definition{Lot: lot, Stock: 6, Hold: time.Minute})
		reserve(t, s, lot, "eve", "k", 1)
		passTime(t, s, rdb, time.Hour, lot)
	}
	if out, err := s.Sweep(t.Context(), sceneLot.Shard(s.Shards()), 10); err != nil || out.Expired != 2 {
		t.Fatal(out, err)
	}
	for _, lot := range lots {
		ids := make(map[string]drop.ReservationID)
		for user, qty := range map[string]int64{"ann": 2, "dan": 1, "fay": 1} {
			ids[user] = reserve(t, s, lot, user, "k", qty).Reservation.ID
		}
		settle(t, s, drop.SettleRequest{ID: ids["dan"], Action: drop.ActRelease})
		settle(t, s, drop.SettleRequest{ID: ids["fay"], Action: drop.ActConfirm, Ref: "p"})
		settle(t, s, drop.SettleRequest{ID: ids["fay"], Action: drop.ActRefund, Total: -1})
		if due {
			passTime(t, s, rdb, time.Hour, lot)
		}
		reserve(t, s, lot, "bob", "k", 1)
		cy := reserve(t, s, lot, "cy", "k", 2)
		settle(t, s, drop.SettleRequest{ID: cy.Reservation.ID, Action: drop.ActConfirm, Ref: "p"})
		wantTotals(t, s, lot, sceneFree, 3, 2)
	}
	sc.kept = serialised(t, rdb)
	return sc
}

func settle(t testing.TB, s *Stock, q drop.SettleRequest) drop.Outcome {
	t.Helper()
	out, err := s.Settle(t.Context(), q)
	if err != nil {
		t.Fatalf("%+v: %v", q, err)
	}
	return out
}

// reset puts the scene back.
func (sc *scene) reset(t *testing.T) {
	t.Helper()
	pipe := sc.rdb.Pipeline()
	pipe.FlushAll(t.Context())
	for k, v := range sc.kept {
		if !strings.HasSuffix(k, ":wake") { // it has a time to live
			pipe.Restore(t.Context(), k, 0, v)
		}
	}
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func (sc *scene) keys(lots ...drop.LotID) []string {
	return sc.s.shardOf(sceneLot).keys.gated(lots...)
}

// run calls a script past the engine and returns the status of its reply, or its error.
func (sc *scene) run(t *testing.T, script string, keys, args []string) string {
	t.Helper()
	return sc.runAs(t, false, script, keys, args)
}

func (sc *scene) runAs(t *testing.T, withSource bool, script string, keys, args []string) string {
	t.Helper()
	args = slices.Clone(args)
	if script == lua.Reserve && len(args) > 5 {
		args = append(args[:5], packed(args[5:]), loneLine(keys, args[5:]))
	}
	call := &invocation{script: scripts[script], keys: keys, args: args[3:]}
	cmd := call.command(t.Context(), withSource, [3]string(args[:3]))
	_ = sc.rdb.Process(t.Context(), cmd)
	r, err := parseReply(cmd)
	if err != nil {
		if !serverSaid(err) {
			t.Fatal(err)
		}
		return err.Error()
	}
	return r.status
}

// n is the seq that held a user's reservation.
func (sc *scene) n(t *testing.T, user string) string {
	t.Helper()
	attempt := drop.AttemptOf(sceneLot, user, "k")
	found, err := sc.s.RecordsOf(t.Context(), sceneLot, []string{attempt})
	if err != nil {
		t.Fatal(err)
	}
	return itoa(found[attempt].ID.N)
}

// scriptCall is a script call as the engine makes it.
type scriptCall struct {
	name, script string
	lots         []drop.LotID
	args         []string // behind the door's three
	numbers      []int    // positions in args that hold numbers
}

// reserveArgs are the values of one request as the engine packs them, numbers as text.
func reserveArgs(lot drop.LotID, user, qty string) []string {
	attempt := drop.AttemptOf(lot, user, "new")
	return []string{string(lot), "1", "-1", "-1", "", attempt, drop.MarkIn(attempt), "h" + attempt[drop.MarkLen:] + "\t" + user + "\t" + qty + "/0\t" + qty + "\t", "\tnew\tshop\t0\n", qty, "0", "0"}
}

// loneArgs are a request among those that are the only ones of their lots.
func loneArgs(lot drop.LotID, user, qty string) []string {
	args := reserveArgs(lot, user, qty)
	return []string{qty, "0", args[5], args[6], args[7]}
}

// replaceArgs are the same request, for the place of the user's live hold.
func replaceArgs(lot drop.LotID, user, qty string) []string {
	args := reserveArgs(lot, user, qty)
	args[11] = "1"
	return args
}

// alikeArgs are the same request, with what all requests of the lot ask for said once.
func alikeArgs(lot drop.LotID, user, qty string) []string {
	args := reserveArgs(lot, user, qty)
	args[2], args[3] = qty, "0"
	return args[:9]
}

// batchArgs are requests of one unit each that make a batch.
func batchArgs(lot drop.LotID, batch string, users ...string) []string {
	args := []string{string(lot), strconv.Itoa(len(users)), "1", "0", batch}
	columns := []func(i int, user string) string{
		func(_ int, user string) string { return drop.AttemptOf(lot, user, "new") },
		func(_ int, user string) string { return drop.MarkOf(lot, user) },
		func(i int, user string) string {
			return "b" + drop.AttemptOf(lot, user, "new")[drop.MarkLen:] + "\t" + user + "\t1/0\t1\t" + strconv.Itoa(i+1) + "\t" + batch
		},
	}
	for _, column := range columns {
		for i, user := range users {
			args = append(args, column(i, user))
		}
	}
	var events strings.Builder
	for _, user := range users {
		events.WriteString(drop.AttemptOf(lot, user, "new") + "\t" + user + "\tnew\tshop\n")
	}
	return append(args, events.String())
}

// loneLine is what the event of a request says that is the only one of its lot; "" where there is none.
func loneLine(keys, values []string) string {
	if len(values) < 6 || len(keys) <= firstLot {
		return ""
	}
	_, lot, _ := strings.Cut(keys[firstLot], "}:lot:")
	_, user, _ := strings.Cut(values[5], "\t")
	user, _, _ = strings.Cut(user, "\t")
	return strings.Join([]string{lot, values[3], user, "new", "shop\n"}, "\t")
}

const firstLot = 6 // in keys

// packed packs values: what reads as a number as one, the rest as text.
func packed(values []string) string {
	p := &packer{}
	for _, v := range values {
		if n, err := strconv.ParseInt(v, 10, 64); err == nil {
			p.number(n)
		} else if f, err := strconv.ParseFloat(v, 64); err == nil {
			p.Write(binary.BigEndian.AppendUint64([]byte{0xcb}, math.Float64bits(f)))
		} else {
			p.text(v)
		}
	}
	return p.String()
}

// calls lists a call of every script and action.
func (sc *scene) calls(t *testing.T) []scriptCall {
	sc.reset(t)
	settleArgs := func(user, action, number, ref, late string) []string {
		return []string{"100", "1", string(sceneLot), "1", drop.AttemptOf(sceneLot, user, "k"), sc.n(t, user), action, number, ref, late, "op\twhy"}
	}
	settleTwo := append(settleArgs("ann", "c", "0", "pay", "reclaim"), settleArgs("bob", "c", "0", "pay", "")[4:]...)
	settleTwo[3] = "2"
	one, both := []drop.LotID{sceneLot}, []drop.LotID{sceneLot, otherLot}
	reserves := func(args ...string) []string { return append([]string{"1000000", "100", "0"}, args...) }
	lone := func(args ...string) []string { return append([]string{"1000000", "100", "1"}, args...) }
	calls := []scriptCall{
		{"reserve", "reserve", one, reserves(reserveArgs(sceneLot, "gus", "1")...), []int{0, 1, 2, 4, 5, 6, 12, 13}},
		{"reserve alone", "reserve", one, lone(loneArgs(sceneLot, "gus", "1")...), []int{0, 1, 2, 3, 4}},
		{"reserve alone with take-back", "reserve", one, lone(loneArgs(sceneLot, "gus", "2")...), []int{0, 1, 2, 3, 4}},
		{"reserve alone of a due user", "reserve", one, lone(loneArgs(sceneLot, "ann", "1")...), nil},
		{"reserve alone, and in another lot", "reserve", both, lone(append(loneArgs(sceneLot, "gus", "1"), reserveArgs(otherLot, "gus", "2")...)...), nil},
		{"reserve all alike", "reserve", one, reserves(alikeArgs(sceneLot, "gus", "1")...), []int{4, 5, 6}},
		{"reserve a batch", "reserve", one, reserves(batchArgs(sceneLot, "b1", "gus")...), []int{4, 6}},
		{"reserve a batch beyond the stock", "reserve", one, reserves(batchArgs(sceneLot, "b1", "gus", "ann", "hal", "ida")...), []int{4, 6}},
		{"reserve with take-back", "reserve", one, reserves(reserveArgs(sceneLot, "gus", "2")...), []int{0, 1, 2, 4, 5, 6, 12, 13}},
		{"reserve of a due user", "reserve", one, reserves(reserveArgs(sceneLot, "ann", "1")...), nil},
		{"reserve in place of a hold", "reserve", one, reserves(replaceArgs(sceneLot, "bob", "2")...), []int{0, 1, 2, 4, 5, 6, 12, 13, 14}},
		{"reserve in place of a due hold", "reserve", one, reserves(replaceArgs(sceneLot, "ann", "2")...), []int{0, 1, 14}},
		{"reserve in place of a hold, beyond the stock", "reserve", one, reserves(replaceArgs(sceneLot, "bob", "5")...), []int{0, 1, 14}},
		{"reserve in two lots", "reserve", both, reserves(append(reserveArgs(sceneLot, "gus", "2"), reserveArgs(otherLot, "gus", "2")...)...), nil},
		{"confirm", "settle", one, settleArgs("bob", "c", "0", "pay", ""), []int{0, 1, 3, 5, 7}},
		{"confirm a due hold", "settle", one, settleArgs("ann", "c", "0", "pay", "refuse"), nil},
		{"confirm late", "settle", one, settleArgs("eve", "c", "0", "pay", "refuse"), []int{0, 1, 3, 5, 7}},
		{"confirm a due hold anew", "settle", one, settleArgs("ann", "c", "0", "pay", "reclaim"), []int{0, 1, 3, 5, 7}},
		{"confirm a due hold anew and another", "settle", one, settleTwo, nil},
		{"release", "settle", one, settleArgs("bob", "r", "0", "", ""), []int{5, 7}},
		{"extend", "settle", one, settleArgs("bob", "e", "600000", "", ""), []int{5, 7}},
		{"refund", "settle", one, settleArgs("cy", "f", "-1", "1", ""), []int{5, 7}},
		{"refund without restock", "settle", one, settleArgs("cy", "f", "1", "0", ""), nil},
		{"sweep", "sweep", both, []string{"100", string(sceneLot), string(otherLot)}, []int{0}},
		{"change", "change", one, []string{string(sceneLot), "op", "why", "100", "0", "status", "paused", "limit", "3"}, nil},
		{"adjust up", "change", one, []string{string(sceneLot), "op", "why", "100", "0", "by", "2", "6"}, []int{3, 6, 7}},
		{"adjust down with take-back", "change", one, []string{string(sceneLot), "op", "why", "100", "0", "to", "4", "6"}, []int{3, 6, 7}},
		{"repair", "repair", one, []string{string(sceneLot), sc.door[0], "1", "1", "1000", "due", drop.AttemptOf(sceneLot, "bob", "k"), sc.n(t, "bob"),
			"user", drop.MarkOf(sceneLot, "bob"), "bob", "9\t9\t", "1", drop.AttemptOf(sceneLot, "bob", "k"), sc.n(t, "bob"), "stray", string(sceneLot) + "\t!", "batch", "none", "next"}, []int{2, 3, 4, 7, 12, 14}},
		{"trim", "trim", nil, []string{"0-1"}, nil},
		{"snapshot", "snapshot", both, []string{"100"}, nil},
		{"file", "file", nil, sc.fileArgs(t), []int{0, 1, 3, 5}},
	}
	return calls
}

// fileArgs are those of a call that files what waits, however little.
func (sc *scene) fileArgs(t *testing.T) []string {
	t.Helper()
	return argsToFile(t, sc.rdb.LRange(t.Context(), sc.s.shardOf(sceneLot).keys.unfiled, 0, -1).Val())
}

func argsToFile(t *testing.T, elements []string) []string {
	t.Helper()
	args, holds := fileArgs(elements)
	if holds == 0 {
		t.Fatalf("%q cannot be filed", elements)
	}
	return args
}

// wantUntouched checks that a call which did not succeed has changed nothing that counts. A due entry too many, or a
// look at a lot too early, says nothing: the record's own deadline decides.
func (sc *scene) wantUntouched(t *testing.T, before map[string]string, status string) {
	t.Helper()
	k := sc.s.shardOf(sceneLot).keys
	loose := []string{k.next, k.due, k.unfiled}
	after := contents(t, sc.rdb)
	for key := range before {
		if !slices.Contains(loose, key) && after[key] != before[key] {
			t.Fatalf("answered %q and changed %s", status, key)
		}
	}
	for key := range after {
		if _, there := before[key]; !there && !slices.Contains(loose, key) {
			t.Fatalf("answered %q and made %s", status, key)
		}
	}
}

// dueMembers returns the due entries of the lots, for a check that none got lost.
func (sc *scene) dueMembers(t *testing.T) map[string]bool {
	out := make(map[string]bool)
	for _, lot := range []drop.LotID{sceneLot, otherLot} {
		err := sc.s.DueEntries(t.Context(), lot, func(page []drop.DueEntry) error {
			for _, e := range page {
				for _, a := range e.Attempts {
					out[a] = true
				}
			}
			return nil
		})
		if err != nil && !strings.Contains(err.Error(), "WRONGTYPE") {
			t.Fatal(err)
		}
	}
	return out
}

// stray is a command that writes something of another type than a key is for.
func stray(key string) []any {
	if wantedType(key) == "list" {
		return []any{"SET", key, "stray"}
	}
	return []any{"RPUSH", key, "stray"}
}

func TestAKeyOfAnotherTypeIsNeverHalfWritten(t *testing.T) {
	for _, due := range []bool{false, true} {
		sc := newScene(t, due)
		for _, call := range sc.calls(t) {
			keys := sc.keys(call.lots...)
			for i, key := range keys {
				t.Run(fmt.Sprintf("due=%v/%s/%s", due, call.name, strings.ReplaceAll(key, "/", "_")), func(t *testing.T) {
					sc.reset(t)
					members := sc.dueMembers(t)
					sc.rdb.Del(t.Context(), key)
					if err := sc.rdb.Do(t.Context(), stray(key)...).Err(); err != nil {
						t.Fatal(err)
					}
					before := contents(t, sc.rdb)
					status := sc.run(t, call.script, keys, append(sc.door[:], call.args...))
					if status == "ok" {
						sc.wantDoneWithout(t, before, key, i)
						return
					}
					sc.wantUntouched(t, before, status)
					if k := sc.s.shardOf(sceneLot).keys; key != k.due && key != k.unfiled {
						for a := range members {
							if !sc.dueMembers(t)[a] {
								t.Fatalf("answered %q and lost the due entry of %s", status, a)
							}
						}
					}
				})
			}
		}
	}
}

// wantDoneWithout checks a call that succeeded although its i-th key was unusable: either it changed nothing, or it had
// no use for the key and the rest agrees.
func (sc *scene) wantDoneWithout(t *testing.T, before map[string]string, key string, i int) {
	t.Helper()
	switch i {
	case 0, 1, 6, 7: // meta, outbox, lots: no change can do without
		sc.wantUntouched(t, before, "ok")
	case 2, 3, 4, 5: // next, due, wake, unfiled
		sc.rdb.Del(t.Context(), key)
		for _, lot := range []drop.LotID{sceneLot, otherLot} {
			wantHistory(t, sc.s, sc.rdb, lot)
		}
	}
}

// hostileNumbers are what no script may take for a number of its own.
var hostileNumbers = []string{"", "abc", "nan", "-nan", "inf", "-inf", "-1", "-2", "0", "0.5", "1.5", "1e308", "-1e308", "9007199254740993", "18446744073709551616"}

// asking is what is stored of a request, if it had asked for another number of units.
func asking(stored, number string) string {
	f := strings.Split(stored, "\t")
	return strings.Join([]string{f[0], f[1], number + "/0", number, ""}, "\t")
}

func TestHostileArgumentsChangeNothingOrSomethingWhole(t *testing.T) {
	testkit.Long(t)
	for _, due := range []bool{false, true} {
		sc := newScene(t, due)
		for _, call := range sc.calls(t) {
			for _, at := range call.numbers {
				for _, number := range hostileNumbers {
					args := slices.Clone(call.args)
					args[at] = number
					if lone := args[2] != "0"; call.script == "reserve" && !lone && (at == 12 || at == 5 && number != "-1") {
						args[10] = asking(args[10], number)
					} else if call.script == "reserve" && lone && at == 3 {
						args[7] = asking(args[7], number)
					}
					sc.wantWhole(t, fmt.Sprintf("%s, argument %d is %q", call.name, at, number), call, append(sc.door[:], args...))
				}
			}
			for n := range call.args { // arguments are missing
				sc.wantWhole(t, fmt.Sprintf("%s, %d arguments", call.name, n), call, append(sc.door[:], call.args[:n]...))
			}
			for _, number := range hostileNumbers { // the retention
				sc.wantWhole(t, fmt.Sprintf("%s, retention %q", call.name, number), call, append([]string{sc.door[0], sc.door[1], number}, call.args...))
			}
		}
	}
}

func TestMalformedAttemptsAndQuantitiesAreRefused(t *testing.T) {
	sc := newScene(t, true)
	base := sc.calls(t)[0]
	for at, bad := range map[int][]string{8: {"", "short", strings.Repeat("a", 27)}, 12: append([]string{"1000000001"}, hostileNumbers...), 13: {"-1", "nan", "inf", "abc", "1e12"}} {
		for _, text := range bad {
			sc.reset(t)
			args := slices.Clone(base.args)
			args[at] = text
			before := contents(t, sc.rdb)
			if status := sc.run(t, "reserve", sc.keys(sceneLot), append(sc.door[:], args...)); status != "invalid" {
				t.Errorf("argument %d as %q: %s", at, text, status)
			}
			if !maps.Equal(before, contents(t, sc.rdb)) {
				t.Errorf("argument %d as %q was written", at, text)
			}
		}
	}
}

// TestMoreRequestsThanACommandCanStoreChangeNothing: what a call stores of a lot goes into one command, behind the events.
func TestMoreRequestsThanACommandCanStoreChangeNothing(t *testing.T) {
	s, rdb, _ := newShop(t)
	lot := newLot(t, s, drop.Definition{Lot: "l", Stock: 9000})
	sh := s.shardOf(lot)
	const most, tooMany = 700, 2100 // see MOST_REQUESTS in lua/common.lua
	call := func(k kind, from, to int) reply {
		g := &group{kind: k}
		g.reset()
		for i := from; i < to; i++ {
			user := fmt.Sprint("user-", i)
			r := newRequest(k, lot)
			r.attempt = drop.AttemptOf(lot, user, "k")
			r.reserve = drop.ReserveRequest{Lot: lot, User: user, Key: "k", Qty: 1, Actor: "shop"}
			r.row = [7]string{r.attempt, strconv.Itoa(i + 2), "c", "0", "", "", "shop\t"} // the first event is the load
			g.add(r)
		}
		inv := g.invocation(sh, k)
		r, _ := s.script(t.Context(), sh, inv.script.name, inv.keys, inv.args)
		return r
	}
	for from := 0; from < tooMany; from += most {
		if r := call(reserveKind, from, from+most); r.status != "ok" {
			t.Fatalf("%+v", r)
		}
	}
	before := contents(t, rdb)
	for k, from := range map[kind]int{reserveKind: tooMany, settleKind: 0} {
		if r := call(k, from, from+tooMany); r.status != "invalid" {
			t.Errorf("kind %d: %s", k, r.status)
		}
	}
	if !maps.Equal(before, contents(t, rdb)) {
		t.Error("something was written")
	}
	if r := call(settleKind, 0, most); r.status != "ok" {
		t.Errorf("%+v", r)
	}
	wantTotals(t, s, lot, 9000-tooMany, tooMany-most, most)
	wantHistory(t, s, rdb, lot)
}

// wantWhole runs a call and checks that it changed nothing, or that everything it changed agrees.
func (sc *scene) wantWhole(t *testing.T, name string, call scriptCall, args []string) {
	t.Helper()
	sc.reset(t)
	before := contents(t, sc.rdb)
	members := sc.dueMembers(t)
	if status := sc.run(t, call.script, sc.keys(call.lots...), args); status != "ok" && status != "conflict" && status != "again" {
		sc.wantUntouched(t, before, name+": "+status)
		for a := range members {
			if !sc.dueMembers(t)[a] {
				t.Fatalf("%s: lost the due entry of %s", name, a)
			}
		}
		return
	}
	t.Run(name, func(t *testing.T) {
		for _, lot := range []drop.LotID{sceneLot, otherLot} {
			wantHistory(t, sc.s, sc.rdb, lot)
		}
	})
}

// TestDamagedRecordsAreNeverHalfWritten gives the scripts records that they did not write.
func TestDamagedRecordsAreNeverHalfWritten(t *testing.T) {
	testkit.Long(t)
	sc := newScene(t, true)
	k := sc.s.shardOf(sceneLot).keys
	for _, call := range sc.calls(t) {
		for _, user := range []string{"ann", "bob", "cy", "eve"} {
			for _, record := range []string{"", "?", "h", "h\tann", "h\tann\t2/0\t2", "h\tann\t2/0\tx\t3\t4\t5", "c\tann", "c\tcy\t2/0\tmany\t3\t4\t0\t0\t0\tp\t\t5", "x", "x\t1/0\t\t3", "r", "f", "\t\t\t\t"} {
				sc.reset(t)
				sc.rdb.HSet(t.Context(), k.lot(sceneLot), drop.AttemptOf(sceneLot, user, "k"), record)
				before := contents(t, sc.rdb)
				status := sc.run(t, call.script, sc.keys(call.lots...), append(sc.door[:], call.args...))
				if status != "ok" {
					sc.wantUntouched(t, before, fmt.Sprintf("%s with %s's record %q: %s", call.name, user, record, status))
				}
				history(t, sc.s, sc.rdb, sceneLot.Shard(sc.s.Shards()))
			}
		}
	}
}

func TestFullMemoryRefusesHoldsAndSettlesOn(t *testing.T) {
	s, rdb, r := newShop(t)
	lot := newLot(t, s, drop.Definition{Lot: "l", Stock: 9, Hold: time.Minute})
	due := reserve(t, s, lot, "due", "k", 1)
	passTime(t, s, rdb, time.Hour, lot)
	a, b := reserve(t, s, lot, "ann", "k", 1), reserve(t, s, lot, "bob", "k", 1)
	if _, err := r.Do(t.Context(), "CONFIG", "SET", "maxmemory", "1"); err != nil {
		t.Fatal(err)
	}
	_, err := s.Reserve(t.Context(), drop.ReserveRequest{Lot: lot, User: "cy", Key: "k", Qty: 1})
	wantCode(t, err, fault.OutOfMemory)
	if err := rdb.FunctionFlush(t.Context()).Err(); err != nil { // with full memory Redis takes no library, as from a new version
		t.Fatal(err)
	}
	settle(t, s, drop.SettleRequest{ID: a.Reservation.ID, Action: drop.ActConfirm, Ref: "p"})
	settle(t, s, drop.SettleRequest{ID: b.Reservation.ID, Action: drop.ActExtend, By: 20 * time.Minute})
	settle(t, s, drop.SettleRequest{ID: b.Reservation.ID, Action: drop.ActRelease})
	settle(t, s, drop.SettleRequest{ID: a.Reservation.ID, Action: drop.ActRefund, Total: -1})
	if out, err := s.Sweep(t.Context(), lot.Shard(s.Shards()), 10); err != nil || out.Expired != 1 {
		t.Fatalf("sweep: %+v, %v", out, err)
	}
	_, err = s.Settle(t.Context(), drop.SettleRequest{ID: due.Reservation.ID, Action: drop.ActConfirm, Ref: "p"})
	wantCode(t, err, fault.HoldExpired)
	if state, _, err := s.Adjust(t.Context(), drop.AdjustRequest{Lot: lot, By: ptr(int64(1)), Expect: 9}); err != nil || state.Capacity != 10 {
		t.Fatalf("adjust: %+v, %v", state, err)
	}
	if _, _, err := s.Change(t.Context(), drop.ChangeRequest{Lot: lot, Status: ptr(drop.Paused)}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Do(t.Context(), "CONFIG", "SET", "maxmemory", "0"); err != nil {
		t.Fatal(err)
	}
	wantTotals(t, s, lot, 10, 0, 0)
	wantHistory(t, s, rdb, lot)
}

// TestEveryScriptRunsAsFunctionAndAsSource: a server that has no functions, or takes none, does all the same.
func TestEveryScriptRunsAsFunctionAndAsSource(t *testing.T) {
	sc := newScene(t, true)
	for _, call := range sc.calls(t) {
		var statuses [2]string
		for i, withSource := range []bool{false, true} {
			sc.reset(t)
			statuses[i] = sc.runAs(t, withSource, call.script, sc.keys(call.lots...), append(sc.door[:], call.args...))
		}
		if statuses[0] != statuses[1] || statuses[0] != "ok" {
			t.Errorf("%s: answered %q as a function, %q as source", call.name, statuses[0], statuses[1])
		}
	}
}

// TestACallThatFailedLeavesNothingForTheNext: functions live on from call to call, and with them what they keep in mind.
func TestACallThatFailedLeavesNothingForTheNext(t *testing.T) {
	sc := newScene(t, true)
	k := sc.s.shardOf(sceneLot).keys
	for _, call := range sc.calls(t) {
		for _, key := range []string{k.outbox, k.next, k.due, k.unfiled} {
			sc.reset(t)
			sc.rdb.Del(t.Context(), key)
			sc.rdb.Do(t.Context(), stray(key)...)
			sc.run(t, call.script, sc.keys(call.lots...), append(sc.door[:], call.args...))
			sc.reset(t)
			reserve(t, sc.s, sceneLot, "hal", "k", 1)
			settle(t, sc.s, drop.SettleRequest{ID: reserve(t, sc.s, otherLot, "hal", "k", 1).Reservation.ID, Action: drop.ActRelease})
			for _, lot := range []drop.LotID{sceneLot, otherLot} {
				wantHistory(t, sc.s, sc.rdb, lot)
			}
		}
	}
}

// A server loses the library when it is emptied wholly, or is new; who meets that loads it for all that follow.
func TestAFunctionUnknownInMidPipelineIsRunOnce(t *testing.T) {
	s, rdb, _ := newShop(t)
	lot := newLot(t, s, drop.Definition{Lot: "l", Stock: 9})
	a := reserve(t, s, lot, "ann", "k", 1)
	sh := s.shardOf(lot)
	inv := func(script string, args ...string) *invocation {
		return &invocation{shard: sh, script: scripts[script], keys: sh.keys.gated(lot), args: args}
	}
	confirm := []string{"100", "1", string(lot), "1", a.Reservation.ID.Attempt, itoa(a.Reservation.ID.N), "c", "0", "p", "", "op\twhy"}
	for unknown := range 4 {
		if err := rdb.FunctionFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		calls := []*invocation{
			inv("reserve", "1000000", "100", packed(append([]string{"0"}, reserveArgs(lot, fmt.Sprintf("user-%d", unknown), "1")...))),
			inv("settle", confirm...),
			inv("snapshot", "10"),
		}
		if unknown < len(calls) { // the server knows all functions but one; in the last round none
			if err := rdb.FunctionLoad(t.Context(), librarySource).Err(); err != nil {
				t.Fatal(err)
			}
			sc := *calls[unknown].script
			sc.function += "_of_another_version"
			calls[unknown].script = &sc
		}
		l := &lane{stock: s, home: sh.home.Load()}
		err := l.ready(t.Context())
		if err == nil {
			err = l.meet(t.Context(), []*shard{sh})
		}
		for i, answer := range l.run(t.Context(), calls, err) {
			if answer.err != nil || answer.reply.status != "ok" {
				t.Errorf("with script %d unknown, call %d: %+v", unknown, i, answer)
			}
		}
		l.close()
		libraries, err := rdb.FunctionList(t.Context(), redis.FunctionListQuery{LibraryNamePattern: libraryName}).Result()
		if err != nil || len(libraries) != 1 {
			t.Fatalf("the library was not loaded for those that follow: %+v, %v", libraries, err)
		}
	}
	wantTotals(t, s, lot, 4, 4, 1)
	wantHistory(t, s, rdb, lot)
}

func TestAnotherInstallationsDataIsLeftAlone(t *testing.T) {
	r := testkit.Redis(t)
	s, rdb := openStock(t, r.URL()), rawClient(t, r)
	lot := newLot(t, s, drop.Definition{Lot: "g:l", Stock: 3})
	a := reserve(t, s, lot, "ann", "k", 1)
	before := contents(t, rdb)
	strangers := map[string]*Stock{
		"installation": openStock(t, r.URL(), func(o *Options) { o.Installation = "99999999-2222-3333-4444-555555555555" }),
		"shards":       openStock(t, r.URL(), func(o *Options) { o.Shards = 512 }),
	}
	for name, stranger := range strangers {
		if name == "shards" && stranger.shardOf(lot).keys != s.shardOf(lot).keys {
			continue
		}
		ctx := t.Context()
		_, err := stranger.Reserve(ctx, drop.ReserveRequest{Lot: lot, User: "bob", Key: "k", Qty: 1})
		wantCode(t, err, fault.Foreign)
		_, err = stranger.Settle(ctx, drop.SettleRequest{ID: a.Reservation.ID, Action: drop.ActRelease})
		wantCode(t, err, fault.Foreign)
		_, _, err = stranger.Change(ctx, drop.ChangeRequest{Lot: lot, Status: ptr(drop.Closed)})
		wantCode(t, err, fault.Foreign)
		wantCode(t, stranger.Load(ctx, LoadRequest{Definition: drop.Definition{Lot: "g:x", Stock: 1}, Epoch: 1}), fault.Foreign)
		st, err := stranger.ShardState(ctx, lot.Shard(stranger.Shards()))
		if err != nil || st.Installation != installation || st.Shards != 16 {
			t.Fatalf("%+v, %v", st, err)
		}
		wantCode(t, stranger.Freeze(ctx, st, fault.FreezeOperator), fault.Foreign)
	}
	if !maps.Equal(before, contents(t, rdb)) {
		t.Fatal("a stranger wrote something")
	}
	adopting := openStock(t, r.URL(), func(o *Options) { o.Installation = "" })
	reserve(t, adopting, lot, "bob", "k", 1)
}

func TestAnEmptiedShardStaysEmpty(t *testing.T) {
	s, rdb, _ := newShop(t)
	lot := newLot(t, s, drop.Definition{Lot: "l", Stock: 3})
	a := reserve(t, s, lot, "ann", "k", 1)
	if err := rdb.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		_, err := s.Reserve(t.Context(), drop.ReserveRequest{Lot: lot, User: "ann", Key: "k", Qty: 1})
		wantCode(t, err, fault.LotNotLoaded)
		_, err = s.Settle(t.Context(), drop.SettleRequest{ID: a.Reservation.ID, Action: drop.ActConfirm})
		wantCode(t, err, fault.LotNotLoaded)
		_, _, err = s.Adjust(t.Context(), drop.AdjustRequest{Lot: lot, To: ptr(int64(9)), Expect: 3})
		wantCode(t, err, fault.LotNotLoaded)
		_, err = s.Lot(t.Context(), lot)
		wantCode(t, err, fault.LotNotLoaded)
		_, err = s.Sweep(t.Context(), lot.Shard(s.Shards()), 10)
		if err != nil {
			wantCode(t, err, fault.LotNotLoaded)
		}
	}
	if left := contents(t, rdb); len(left) > 0 {
		t.Fatalf("something was made: %v", slices.Collect(maps.Keys(left)))
	}
}

func TestALotLostFromItsShardIsNotLoaded(t *testing.T) {
	s, rdb, _ := newShop(t)
	lot := newLot(t, s, drop.Definition{Lot: "g:l", Stock: 3})
	newLot(t, s, drop.Definition{Lot: "g:m", Stock: 3})
	k := s.shardOf(lot).keys
	rdb.Del(t.Context(), k.lot(lot))
	_, err := s.Reserve(t.Context(), drop.ReserveRequest{Lot: lot, User: "ann", Key: "k", Qty: 1})
	wantCode(t, err, fault.LotNotLoaded)
	reserve(t, s, "g:m", "ann", "k", 1)
	if n := rdb.Exists(t.Context(), k.lot(lot)).Val(); n != 0 {
		t.Fatal("the lot came back by itself")
	}
}

func TestTimeDoesNotRunBack(t *testing.T) {
	s, rdb, _ := newShop(t)
	now := rdb.Time(t.Context()).Val()
	mark := now.Add(1500 * time.Millisecond).Truncate(time.Millisecond)
	for lot, m := range map[drop.LotID]time.Time{"g:near": mark, "g:far": now.Add(time.Minute)} {
		if err := s.Load(t.Context(), LoadRequest{Definition: drop.Definition{Lot: lot, Stock: 3, Hold: time.Minute}, Epoch: 1, Mark: m}); err != nil {
			t.Fatal(err)
		}
	}
	a := reserve(t, s, "g:near", "ann", "k", 1)
	if a.Reservation.Created.Before(mark) {
		t.Fatalf("held at %v, before the mark %v", a.Reservation.Created, mark)
	}
	before := contents(t, rdb)
	_, err := s.Reserve(t.Context(), drop.ReserveRequest{Lot: "g:far", User: "ann", Key: "k", Qty: 1})
	wantCode(t, err, fault.LotFrozen)
	if reason := fault.As(err).Details["reason"]; reason != string(fault.FreezeClock) {
		t.Fatalf("frozen for %v", reason)
	}
	_, err = s.Reserve(t.Context(), drop.ReserveRequest{Lot: "g:near", User: "bob", Key: "k", Qty: 1})
	wantCode(t, err, fault.LotFrozen) // the whole shard
	after := contents(t, rdb)
	meta := s.shardOf("g:near").keys.meta
	delete(before, meta)
	delete(after, meta)
	delete(before, s.shardOf("g:near").keys.wake)
	delete(after, s.shardOf("g:near").keys.wake)
	if !maps.Equal(before, after) {
		t.Fatal("more than the freeze was written")
	}
	st, err := s.ShardState(t.Context(), drop.LotID("g:near").Shard(s.Shards()))
	if err != nil || st.Frozen != string(fault.FreezeClock) {
		t.Fatalf("%+v, %v", st, err)
	}
}

// TestAClockThatRanBackLosesNoDueTime: a sweep that meets the freeze leaves the lot on the shard's list of due lots.
func TestAClockThatRanBackLosesNoDueTime(t *testing.T) {
	s, rdb, _ := newShop(t)
	lot := newLot(t, s, drop.Definition{Lot: "l", Stock: 3, Hold: time.Second})
	reserve(t, s, lot, "ann", "k", 1)
	passTime(t, s, rdb, time.Minute, lot)
	reserve(t, s, lot, "bob", "k", 1)         // moves the mark to now
	passTime(t, s, rdb, -10*time.Second, lot) // the clock runs back
	shard := lot.Shard(s.Shards())
	_, err := s.Sweep(t.Context(), shard, 10)
	wantCode(t, err, fault.LotFrozen)
	passTime(t, s, rdb, time.Minute, lot) // the clock has caught up
	st, err := s.ShardState(context.Background(), shard)
	if err != nil || st.Frozen != string(fault.FreezeClock) {
		t.Fatalf("%+v, %v", st, err)
	}
	if err := s.Reopen(t.Context(), st); err != nil {
		t.Fatal(err)
	}
	if out, err := s.Sweep(t.Context(), shard, 10); err != nil || out.Expired != 2 {
		t.Fatalf("%+v, %v: the lot is forgotten", out, err)
	}
	wantTotals(t, s, lot, 3, 0, 0)
}

// Whoever acts, and why, goes into an event as it is: no text may add fields or events to it.
func TestNoTextBreaksIntoAnEvent(t *testing.T) {
	sc := newScene(t, false)
	state := wantTotals(t, sc.s, sceneLot, sceneFree, 3, 2)
	before := contents(t, sc.rdb)
	for _, text := range []string{"a\tb", "a\n*\tj\t9", "\x00", "\xff"} {
		load := LoadRequest{Definition: state.Definition, Epoch: 2, Closing: state.Watermark, Planned: PlanOf(state), Held: 3, Sold: 2}
		for _, by := range [][2]string{{text, "why"}, {"op", text}} {
			load.Actor, load.Reason = by[0], by[1]
			wantCode(t, sc.s.Load(t.Context(), load), fault.Invalid)
			wantCode(t, sc.s.Renew(t.Context(), state, 2, by[0], by[1]), fault.Invalid)
			_, _, err := sc.s.Adjust(t.Context(), drop.AdjustRequest{Lot: sceneLot, By: new(int64), Expect: state.Capacity, Actor: by[0], Reason: by[1]})
			wantCode(t, err, fault.Invalid)
		}
	}
	if !maps.Equal(before, contents(t, sc.rdb)) {
		t.Error("something was changed")
	}
}

func TestAMalformedLoadChangesNothing(t *testing.T) {
	sc := newScene(t, false)
	state := wantTotals(t, sc.s, sceneLot, sceneFree, 3, 2)
	planned := state.OpenRun + "\t1\t" + itoa(state.Seq)
	args := []string{string(sceneLot), planned, "2", "1", itoa(state.Seq), "6", "3", "2", "open", "0", "60000", "60000", "", "", "refuse", "", "op", "why", "0", "0"}
	keys := sc.s.shardOf(sceneLot).keys.staging(sceneLot)
	load := func(args []string) string {
		sc.reset(t)
		before := contents(t, sc.rdb)
		status := sc.run(t, "load", keys, append(sc.door[:], args...))
		if status != "ok" && !maps.Equal(before, contents(t, sc.rdb)) {
			t.Fatalf("answered %q and changed something", status)
		}
		return status
	}
	for _, at := range []int{2, 3, 4, 5, 6, 7, 18, 19} {
		for _, number := range hostileNumbers {
			bad := slices.Clone(args)
			bad[at] = number
			if status := load(bad); status == "ok" && number != "0" {
				t.Fatalf("argument %d may be %q", at, number)
			}
		}
	}
	for n := range args {
		if status := load(args[:n]); status == "ok" {
			t.Fatalf("%d arguments are enough", n)
		}
	}
	for i, key := range keys {
		sc.reset(t)
		sc.rdb.Del(t.Context(), key)
		sc.rdb.Do(t.Context(), stray(key)...)
		before := contents(t, sc.rdb)
		status := sc.run(t, "load", keys, append(sc.door[:], args...))
		if i == 4 || i > 6 {
			continue // wake is only ever set, and what was staged is thrown away
		}
		if status == "ok" || !maps.Equal(before, contents(t, sc.rdb)) {
			t.Fatalf("with %s of another type, answered %q", key, status)
		}
	}
	other := slices.Clone(args)
	other[1] = state.OpenRun + "\t1\t" + itoa(state.Seq-1)
	if status := load(other); status != "conflict" {
		t.Fatalf("a load planned on an older look answered %q", status)
	}
	if status := load(args); status != "ok" {
		t.Fatalf("the right load answered %q", status)
	}
}

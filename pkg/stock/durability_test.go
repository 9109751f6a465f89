package stock

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/telemetry"
	"github.com/dropctl/dropctl/pkg/testkit"
)

// durable asks an engine for a level. It waits long enough for a busy machine.
func durable(level string) func(*Options) {
	return func(o *Options) { o.Durability, o.DurabilityWait = level, 10*time.Second }
}

// hasty asks for a level and soon gives up waiting for it.
func hasty(level string) func(*Options) {
	return func(o *Options) { o.Durability, o.DurabilityWait = level, 50*time.Millisecond }
}

func do(t testing.TB, r *lab.Redis, args ...string) string {
	t.Helper()
	reply, err := r.Do(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return reply
}

func TestLevels(t *testing.T) {
	for text, want := range map[string]level{"": {}, "memory": {}, "disk": {disk: true}, "replicas=1": {replicas: 1}, "replicas=99": {replicas: 99}} {
		if got, err := parseLevel(text); err != nil || got != want {
			t.Errorf("%q is %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"Disk", "replicas", "replicas=", "replicas=0", "replicas=-1", "replicas=100", "replicas=one", "disk,replicas=1", " disk"} {
		_, err := Open(Options{URL: "redis://localhost", Durability: text})
		if wantCode(t, err, fault.InvalidConfig); fault.As(err).Field != "durability" {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestNoAnswerTellsOfAHoldThatOnlyThePrimaryHas cuts the replica off. What a call wrote stays written, but neither its
// own answer nor that of any other connection relies on it, until the replica has it.
func TestNoAnswerTellsOfAHoldThatOnlyThePrimaryHas(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	primary, replicas := testkit.Replicated(t, 1)
	replica := replicas[0]
	s, onlooker := openStock(t, primary.URL(), durable("replicas=1")), openStock(t, primary.URL())
	lot := newLot(t, s, drop.Definition{Lot: "truffle", Stock: 3, Limit: 1})
	kept := reserve(t, s, lot, "ann", "k", 1)
	if err := s.CheckDurability(t.Context()); err != nil {
		t.Errorf("with its replica: %v", err)
	}
	if err := replica.CutReplication(t.Context(), primary); err != nil {
		t.Fatal(err)
	}

	metrics := telemetry.New()
	writer, other := openStock(t, primary.URL(), hasty("replicas=1"), func(o *Options) { o.Metrics = metrics.Engine }), openStock(t, primary.URL(), hasty("replicas=1"))
	ask := func(s *Stock, user, key string) error {
		_, err := s.Reserve(t.Context(), drop.ReserveRequest{Lot: lot, User: user, Key: key, Qty: 1})
		return err
	}
	settle := func(s *Stock, action drop.Action) error {
		_, err := s.Settle(t.Context(), drop.SettleRequest{ID: kept.Reservation.ID, Action: action})
		return err
	}
	for what, try := range map[string]func(s *Stock) error{
		"a hold":             func(s *Stock) error { return ask(s, "bob", "k") },
		"a confirmation":     func(s *Stock) error { return settle(s, drop.ActConfirm) },
		"a refusal, no hold": func(s *Stock) error { return ask(s, "ann", "another") },
		"a change": func(s *Stock) error {
			_, _, err := s.Change(t.Context(), drop.ChangeRequest{Lot: lot, Name: ptr("Truffles")})
			return err
		},
	} {
		for i, s := range []*Stock{writer, other} { // the other one finds it done
			if err := try(s); !fault.Is(err, fault.OutcomeUnknown) {
				t.Errorf("%s, engine %d: %v", what, i, err)
			} else if i == 0 && !strings.Contains(err.Error(), "only 0 of 1 replicas") {
				t.Errorf("%s: %v", what, err)
			}
		}
	}
	if n, _ := metric(t, metrics, "dropctl_engine_unproven_calls_total", ""); n != 4 {
		t.Errorf("%v calls are counted as unproven, of 4", n)
	}
	_, err := other.Reserve(t.Context(), drop.ReserveRequest{Lot: "unknown", User: "ann", Key: "k", Qty: 1})
	wantCode(t, err, fault.LotNotLoaded) // which rests on no write
	if _, err := other.Lot(t.Context(), lot); err != nil {
		t.Errorf("a look: %v", err)
	}
	if err := other.CheckDurability(t.Context()); !fault.Is(err, fault.Unavailable) {
		t.Errorf("without its replica: %v", err)
	}
	if state, err := onlooker.Lot(t.Context(), lot); err != nil || state.Held != 1 || state.Sold != 1 || state.Name != "Truffles" {
		t.Errorf("the primary has %+v, %v: nothing is to be undone", state, err)
	}

	if err := replica.HealReplication(t.Context()); err != nil {
		t.Fatal(err)
	}
	out := reserve(t, s, lot, "bob", "k", 1) // the wait is long enough for the replica to come back
	if !out.Replayed || out.Reservation.State != drop.Held {
		t.Errorf("the same key again: %+v", out)
	}
	wantHistory(t, s, rawClient(t, primary), lot)
}

// TestAReleaseAndASweepWaitToo takes units back while the replica is cut off.
func TestAReleaseAndASweepWaitToo(t *testing.T) {
	t.Parallel()
	primary, replicas := testkit.Replicated(t, 1)
	s := openStock(t, primary.URL(), hasty("replicas=1"))
	shop := openStock(t, primary.URL())
	lot := newLot(t, shop, drop.Definition{Lot: "truffle", Stock: 3})
	kept := reserve(t, shop, lot, "ann", "k", 1)
	reserve(t, shop, lot, "bob", "k", 1)
	if err := replicas[0].CutReplication(t.Context(), primary); err != nil {
		t.Fatal(err)
	}
	_, err := s.Settle(t.Context(), drop.SettleRequest{ID: kept.Reservation.ID, Action: drop.ActRelease})
	wantCode(t, err, fault.OutcomeUnknown)
	passTime(t, s, rawClient(t, primary), time.Hour, lot)
	_, err = s.Sweep(t.Context(), lot.Shard(s.Shards()), 100)
	wantCode(t, err, fault.OutcomeUnknown)
	if state, err := shop.Lot(t.Context(), lot); err != nil || state.Available != 3 {
		t.Errorf("the primary has %+v, %v: nothing is to be undone", state, err)
	}
}

// TestOneWaitForABatch counts the waits of many calls at once.
func TestOneWaitForABatch(t *testing.T) {
	t.Parallel()
	primary, _ := testkit.Replicated(t, 1)
	s := openStock(t, primary.URL(), durable("replicas=1"))
	lot := newLot(t, s, drop.Definition{Lot: "truffle", Stock: drop.MaxUnits})
	do(t, primary, "FUNCTION", "FLUSH") // batches that are sent again have the one wait that counts
	do(t, primary, "CONFIG", "RESETSTAT")
	const calls = 2000
	inParallel(calls, func(i int) { reserve(t, s, lot, strconv.Itoa(i), "k", 1) })
	stats := readInfo(do(t, primary, "INFO", "commandstats"))
	count := func(command string) int {
		number, _, _ := strings.Cut(strings.TrimPrefix(stats["cmdstat_"+command], "calls="), ",")
		n, _ := strconv.Atoi(number)
		return n
	}
	waits, scripts := count("wait"), count("fcall")+count("eval")
	if waits == 0 || waits > calls/4 || waits > scripts/2 {
		t.Errorf("%d calls took %d scripts and %d waits", calls, scripts, waits)
	}
	if held := len(wantHistory(t, s, rawClient(t, primary), lot)) - 1; held != calls {
		t.Errorf("%d of %d are held", held, calls)
	}
}

// TestAReplayIsFenced looks for the write that lets a wait cover what other connections wrote. Redis 7.0 needs none, but
// promises no more than that a wait covers the writes of its own connection.
func TestAReplayIsFenced(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	primary, _ := testkit.Replicated(t, 1)
	s := openStock(t, primary.URL(), durable("replicas=1"))
	lot := newLot(t, s, drop.Definition{Lot: "truffle", Stock: 3})
	reserve(t, s, lot, "ann", "k", 1)
	rdb, meta := rawClient(t, primary), s.shardOf(lot).keys.meta
	if err := rdb.HDel(t.Context(), meta, "fence").Err(); err != nil {
		t.Fatal(err)
	}
	if out := reserve(t, s, lot, "ann", "k", 1); !out.Replayed {
		t.Fatalf("%+v", out)
	}
	if there, err := rdb.HExists(t.Context(), meta, "fence").Result(); err != nil || !there {
		t.Errorf("a fence: %t, %v", there, err)
	}
}

// TestRecoveryWaitsForNobody loads, freezes and reopens while there is no replica: a shop that has just lost its primary
// has none. What is refused at the door rests on no write.
func TestRecoveryWaitsForNobody(t *testing.T) {
	t.Parallel()
	s := openStock(t, testkit.Redis(t).URL(), hasty("replicas=1"))
	lot := newLot(t, s, drop.Definition{Lot: "truffle", Stock: 3})
	shard := lot.Shard(s.Shards())
	look := func() drop.ShardState {
		state, err := s.ShardState(t.Context(), shard)
		if err != nil {
			t.Fatal(err)
		}
		return state
	}
	if err := s.Freeze(t.Context(), look(), fault.FreezeOperator); err != nil {
		t.Error(err)
	}
	_, _, err := s.Change(t.Context(), drop.ChangeRequest{Lot: lot, Status: ptr(drop.Paused)})
	wantCode(t, err, fault.LotFrozen)
	if err := s.Reopen(t.Context(), look()); err != nil {
		t.Error(err)
	}
	_, _, err = s.Change(t.Context(), drop.ChangeRequest{Lot: lot, Status: ptr(drop.Paused)})
	wantCode(t, err, fault.OutcomeUnknown)
}

// TestAWaitThatIsRefusedProvesNothing forbids the wait.
func TestAWaitThatIsRefusedProvesNothing(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	primary, _ := testkit.Replicated(t, 1)
	lot := newLot(t, openStock(t, primary.URL()), drop.Definition{Lot: "truffle", Stock: 3})
	do(t, primary, "ACL", "SETUSER", "shop", "on", ">secret", "~drop:*", "+@all", "-wait")
	s := openStock(t, "redis://shop:secret@"+primary.Addr(), durable("replicas=1"))
	_, err := s.Reserve(t.Context(), drop.ReserveRequest{Lot: lot, User: "ann", Key: "k", Qty: 1})
	wantCode(t, err, fault.OutcomeUnknown)
	if !strings.Contains(err.Error(), "NOPERM") {
		t.Errorf("%v", err)
	}
}

// TestUnitsComeBackWhileMemoryIsFull needs a fence that is written even then.
func TestUnitsComeBackWhileMemoryIsFull(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	primary, _ := testkit.Replicated(t, 1)
	s := openStock(t, primary.URL(), durable("replicas=1"))
	lot := newLot(t, s, drop.Definition{Lot: "truffle", Stock: 3})
	kept := reserve(t, s, lot, "ann", "k", 1)
	do(t, primary, "CONFIG", "SET", "maxmemory", "1")
	_, err := s.Reserve(t.Context(), drop.ReserveRequest{Lot: lot, User: "bob", Key: "k", Qty: 1})
	wantCode(t, err, fault.OutOfMemory)
	if _, err := s.Settle(t.Context(), drop.SettleRequest{ID: kept.Reservation.ID, Action: drop.ActRelease}); err != nil {
		t.Error(err)
	}
}

// TestDiskIsRefusedWhereItCannotBeHad changes a server's configuration under the engine.
func TestDiskIsRefusedWhereItCannotBeHad(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	r := testkit.Redis(t, lab.RedisOptions{Fsync: "always"})
	s := openStock(t, r.URL(), durable("disk"))
	lot := newLot(t, s, drop.Definition{Lot: "truffle", Stock: 100})
	keys := 0
	ask := func(s *Stock) error { // nil, or why both the check and a call refuse
		keys++
		_, err := s.Reserve(t.Context(), drop.ReserveRequest{Lot: lot, User: "ann", Key: strconv.Itoa(keys), Qty: 1})
		if fault.Is(err, fault.HoldExists) {
			err = nil
		}
		if check := s.CheckDurability(t.Context()); (check == nil) != (err == nil) {
			return errors.New(fmt.Sprint("the call says ", err, ", the check ", check))
		}
		return err
	}
	if err := ask(s); err != nil {
		t.Fatalf("with appendfsync always: %v", err)
	}
	waitaof := strings.Contains(do(t, r, "INFO", "server"), "redis_version:8.") // one that can be relied on
	for _, c := range []struct {
		set, to, back string
		waits         bool // WAITAOF makes up for it
		says          string
	}{
		{"appendfsync", "everysec", "always", true, "everysec"},
		{"no-appendfsync-on-rewrite", "yes", "no", true, "no-appendfsync-on-rewrite"},
		{"appendonly", "no", "yes", false, "append-only file is off"},
	} {
		do(t, r, "CONFIG", "SET", c.set, c.to)
		if c.waits && waitaof {
			if err := ask(s); err != nil {
				t.Errorf("%s %s with WAITAOF: %v", c.set, c.to, err)
			}
		} else {
			testkit.Eventually(t, 2*recheck+5*time.Second, func() (bool, string) {
				err := ask(s)
				return fault.Is(err, fault.Unavailable) && strings.HasPrefix(err.Error(), "Redis at ") && strings.Contains(err.Error(), c.says) && strings.Contains(fault.HintOf(err), "appendfsync always"),
					fmt.Sprintf("with %s %s: %v", c.set, c.to, err)
			})
		}
		do(t, r, "CONFIG", "SET", c.set, c.back)
		testkit.Eventually(t, 30*time.Second, func() (bool, string) { // a file that was just switched on must be complete
			err := ask(s)
			return err == nil, fmt.Sprintf("with %s %s: %v", c.set, c.back, err)
		})
	}

	// Whoever has to stop a sale must be able to, and to look.
	do(t, r, "CONFIG", "SET", "appendonly", "no")
	hurried := openStock(t, r.URL(), durable("disk"))
	_, _, err := hurried.Change(t.Context(), drop.ChangeRequest{Lot: lot, Status: ptr(drop.Paused)})
	wantCode(t, err, fault.OutcomeUnknown)
	if state, err := hurried.Lot(t.Context(), lot); err != nil || state.Status != drop.Paused {
		t.Errorf("%+v, %v", state, err)
	}
	do(t, r, "CONFIG", "SET", "appendonly", "yes")
	testkit.Eventually(t, 30*time.Second, func() (bool, string) {
		_, _, err := hurried.Change(t.Context(), drop.ChangeRequest{Lot: lot, Status: ptr(drop.Open)})
		return err == nil, fmt.Sprintf("with everything back: %v", err)
	})

	do(t, r, "ACL", "SETUSER", "shop", "on", ">secret", "~drop:*", "+@all", "-config")
	managed := "redis://shop:secret@" + r.Addr()
	if err := ask(openStock(t, managed, durable("disk"))); !waitaof && (!fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "attested")) {
		t.Errorf("where CONFIG is forbidden: %v", err)
	}
	if err := ask(openStock(t, managed, durable("disk"), func(o *Options) { o.AttestedFsync = "always" })); err != nil {
		t.Errorf("where it is attested: %v", err)
	}
}

// withVersion plays that the server is of another version, and has WAITAOF.
func (p *played) withVersion(t *testing.T, r *lab.Redis, version string) {
	t.Helper()
	info := regexp.MustCompile("redis_version:[^\r\n]*").ReplaceAllString(do(t, r, "INFO", "everything"), "redis_version:"+version)
	p.say("info server persistence", fmt.Sprintf("$%d\r\n%s\r\n", len(info), info))
	p.say("COMMAND INFO WAITAOF", "*1\r\n*1\r\n$7\r\nwaitaof\r\n")
}

// Valkey, which says that it is Redis 7.2.4, and Redis before 8.0 have a WAITAOF that does not wait for the disk.
func TestAWaitForTheDiskThatDoesNotWaitIsRefused(t *testing.T) {
	t.Parallel()
	r := testkit.Redis(t)
	lot := newLot(t, openStock(t, r.URL()), drop.Definition{Lot: "truffle", Stock: 100})
	for _, version := range []string{"7.2.0", "7.2.4", "7.4.9", "strange"} {
		p := play(t, r)
		p.withVersion(t, r, version)
		s := openStock(t, p.url(r), durable("disk"))
		_, err := s.Reserve(t.Context(), drop.ReserveRequest{Lot: lot, User: version, Key: "k", Qty: 1})
		if !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "its WAITAOF (Redis "+version+") answers before") {
			t.Errorf("version %s: %v", version, err)
		}
		if check := s.CheckDurability(t.Context()); check == nil {
			t.Errorf("version %s: the check finds nothing", version)
		}
	}
}

// TestTheWaitForTheDisk runs against a server with WAITAOF played in front of it: what is synced, and how many replicas.
func TestTheWaitForTheDisk(t *testing.T) {
	t.Parallel()
	r := testkit.Redis(t)
	lot := newLot(t, openStock(t, r.URL()), drop.Definition{Lot: "truffle", Stock: 100})
	const wait, synced = "WAITAOF 1 0 10000", "*2\r\n:1\r\n:0\r\n"
	for i, c := range []struct {
		answer string
		want   fault.Code
	}{
		{synced, ""},
		{"*2\r\n:0\r\n:5\r\n", fault.OutcomeUnknown},
		{"-ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.\r\n", fault.OutcomeUnknown},
		{"-UNBLOCKED force unblock from blocking operation, instance state changed\r\n", fault.OutcomeUnknown},
		{"", fault.OutcomeUnknown}, // the connection is lost in the middle of the wait
	} {
		first, second := fmt.Sprintf("%d-ann", i), fmt.Sprintf("%d-bob", i)
		p := play(t, r)
		p.withVersion(t, r, "8.0.0")
		p.say(wait, synced)
		s := openStock(t, p.url(r), durable("disk"))
		out := reserve(t, s, lot, first, "k", 1)
		p.say(wait, c.answer)
		for range 2 { // the second time it is a replay
			again, err := s.Reserve(t.Context(), drop.ReserveRequest{Lot: lot, User: second, Key: "k", Qty: 1})
			if fault.CodeOf(err) != c.want || c.want == "" && again.Reservation.Qty != 1 {
				t.Errorf("%q: %+v, %v", c.answer, again, err)
			}
		}
		p.say(wait, synced)
		if again := reserve(t, s, lot, first, "k", 1); !again.Replayed || again.Reservation.ID != out.Reservation.ID {
			t.Errorf("%q: after all the reservation is %+v", c.answer, again)
		}
	}
}

// played stands in front of a server and answers some commands in its place.
type played struct {
	listener net.Listener

	mu      sync.Mutex
	answers map[string]string // by command; "" ends the connection
}

func play(t *testing.T, r *lab.Redis) *played {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &played{listener: l, answers: map[string]string{}}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { p.serve(client, r.Addr()) })
		}
	})
	t.Cleanup(wg.Wait)
	t.Cleanup(func() { _ = l.Close() })
	return p
}

func (p *played) url(r *lab.Redis) string {
	return strings.Replace(r.URL(), r.Addr(), p.listener.Addr().String(), 1)
}

func (p *played) say(command, answer string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answers[command] = answer
}

func (p *played) answer(command string) (answer string, ours bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	answer, ours = p.answers[command]
	return answer, ours
}

// serve passes one command after the other, so that the answers stay in order.
func (p *played) serve(client net.Conn, address string) {
	defer func() { _ = client.Close() }()
	server, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	requests, replies := bufio.NewReader(client), bufio.NewReader(server)
	for {
		raw, words, err := readValue(requests)
		if err != nil {
			return
		}
		answer, ours := p.answer(strings.Join(words, " "))
		if !ours {
			if _, err := server.Write(raw); err != nil {
				return
			}
			if raw, _, err = readValue(replies); err != nil {
				return
			}
			answer = string(raw)
		}
		if _, err := io.WriteString(client, answer); err != nil || answer == "" {
			return
		}
	}
}

// readValue reads one value of the Redis protocol: as it came, and the texts in it.
func readValue(r *bufio.Reader) (raw []byte, words []string, err error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return nil, nil, err
	}
	raw = []byte(line)
	n, _ := strconv.Atoi(strings.TrimSpace(line[1:]))
	parts := 0
	switch line[0] {
	case '$', '=':
		if n < 0 {
			return raw, nil, nil
		}
		text := make([]byte, n+len("\r\n"))
		if _, err := io.ReadFull(r, text); err != nil {
			return nil, nil, err
		}
		return append(raw, text...), []string{string(text[:n])}, nil
	case '*', '~', '>':
		parts = n
	case '%':
		parts = 2 * n
	}
	for range parts {
		part, more, err := readValue(r)
		if err != nil {
			return nil, nil, err
		}
		raw, words = append(raw, part...), append(words, more...)
	}
	return raw, words, nil
}

// TestShardsTravelTogether: requests for many shards need few waits for the replica, and a shard that is shut, whose fence
// writes nothing, leaves the others theirs.
func TestShardsTravelTogether(t *testing.T) {
	t.Parallel()
	const shards = 16
	primary, _ := testkit.Replicated(t, 1)
	s := openStock(t, primary.URL(), durable("replicas=1"), func(o *Options) { o.Shards = shards })
	var qs []drop.ReserveRequest
	for n := range shards {
		name := 0
		for drop.LotID("lot-"+strconv.Itoa(name)).Shard(shards) != n {
			name++
		}
		lot := newLot(t, s, drop.Definition{Lot: drop.LotID("lot-" + strconv.Itoa(name)), Stock: 5})
		qs = append(qs, one(lot, "ann"))
	}
	const shut = 3
	door, err := s.ShardState(t.Context(), shut)
	if err == nil {
		err = s.Freeze(t.Context(), door, fault.FreezeOperator)
	}
	if err != nil {
		t.Fatal(err)
	}
	rdb := rawClient(t, primary)
	before := calls(t, rdb, "wait")
	outs, errs := together(t, s, qs)
	for n, err := range errs {
		switch {
		case n == shut:
			wantCode(t, err, fault.LotFrozen)
		case err != nil || outs[n].Reservation.ID.Lot != qs[n].Lot:
			t.Errorf("shard %d: %+v, %v", n, outs[n], err)
		}
	}
	if waits := calls(t, rdb, "wait") - before; waits < 1 || waits > shards/2 {
		t.Errorf("%d waits for %d shards", waits, shards)
	}
}

package ledger

import (
	"bytes"
	"fmt"
	"net"
	"net/url"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/testkit"
)

// The files of the database are replaced by an older copy, so that commits which were acknowledged are gone. The
// server shows that it is not the one before, and applying everything again ends where it had ended, with each sale
// once.
func TestADatabaseThatWasPutBackGetsWhatItLacks(t *testing.T) {
	testkit.Long(t)
	server := testkit.PostgresServer(t)
	if _, err := MigrateUp(t.Context(), Options{URL: server.URL(lab.Owner, lab.Database)}, MigrateOptions{AppRole: string(lab.App)}); err != nil {
		t.Fatal(err)
	}
	l := reopened(t, server, nil)
	r, moved := seeded(t, l, "lot", 50), seeded(t, l, "moved", 50)
	first := r.hold("ann", 2)
	r.confirm(first, 2, "pay-ann")
	r.hold("bob", 1)
	moved.hold("ann", 1)
	lived, movedLived := r.take(), moved.take()
	apply(t, l, append(lived, movedLived...)...)
	finalise(t, l)
	remember := func() string {
		now, _, _, err := l.Server(t.Context())
		if err == nil {
			err = l.SetServer(t.Context(), now, nil)
		}
		if err != nil {
			t.Fatal(err)
		}
		return now
	}
	remember()
	data := filepath.Join(server.Dir(), "data")
	l = reopened(t, server, func() { run(t, "cp", "-a", data, data+".old") })
	before := remember()

	r.refund(first, 1, true)
	for range 20 {
		r.confirm(r.hold("cid", 1), 1, "pay-cid")
	}
	kept := r.take()
	apply(t, l, kept...)
	finalise(t, l)
	moved.load(issue(t, l, "moved"))
	moved.confirm(moved.hold("dan", 1), 1, "pay-dan")
	movedKept := moved.take()
	apply(t, l, movedKept...)
	was := recorded(t, server)

	l = reopened(t, server, func() {
		run(t, "rm", "-r", data)
		run(t, "mv", data+".old", data)
	})
	now, remembered, _, err := l.Server(t.Context())
	if err != nil || now == remembered || now == before {
		t.Errorf("the server is %q, before %q, and the database remembers %q: %v", now, before, remembered, err)
	}
	if recorded(t, server) == was {
		t.Fatal("nothing was lost: the test tests nothing")
	}
	apply(t, l, append(lived, kept...)...)
	finalise(t, l)
	if is := recorded(t, server); is != was {
		t.Errorf("recorded was\n%s\nand is\n%s", was, is)
	}
	wantTotals(t, l, "lot", 50, 1, 21)
	wantVerified(t, l, "lot")

	// The number of an epoch was lost too. Nothing is guessed: the lot stops, its money is due when the next epoch
	// is issued, and that is a number that Redis has not seen.
	apply(t, l, append(movedLived, movedKept...)...)
	wantStopped(t, l, "moved", fault.StopUnfoldable)
	if issued := issue(t, l, "moved"); issued.Epoch != moved.epoch+1 {
		t.Errorf("issued %+v behind %d", issued, moved.epoch)
	}
	if due := dueRefs(t, l, "moved"); due != "ghost:pay-dan:1" {
		t.Errorf("refunds due: %s", due)
	}
}

// An asynchronous standby that lacks the newest commits becomes the primary, behind the same address and under a
// ledger that stays open: it shows that it is another server, and applying everything again ends where it had ended.
func TestAPromotedStandbyGetsWhatItLacks(t *testing.T) {
	testkit.Long(t)
	primary := testkit.PostgresServer(t)
	if _, err := MigrateUp(t.Context(), Options{URL: primary.URL(lab.Owner, lab.Database)}, MigrateOptions{AppRole: string(lab.App)}); err != nil {
		t.Fatal(err)
	}
	standby := testkit.Standby(t, primary, false)
	address := testkit.Proxy(t, primary.Addr())
	l, err := Open(t.Context(), Options{URL: address.URL(t, primary.URL(lab.App, lab.Database))})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	before, _, _, err := l.Server(t.Context())
	if err == nil {
		err = l.SetServer(t.Context(), before, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	r := seeded(t, l, "lot", 50)
	first := r.hold("ann", 2)
	r.confirm(first, 2, "pay-ann")
	apply(t, l, r.events...)
	finalise(t, l)
	if err := standby.CutReplication(t.Context(), primary); err != nil {
		t.Fatal(err)
	}
	r.refund(first, 1, true)
	for range 20 {
		r.confirm(r.hold("cid", 1), 1, "pay-cid")
	}
	kept := r.take()
	apply(t, l, kept...)
	finalise(t, l)
	was := recorded(t, primary)

	address.Cut()
	if err := primary.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	if recorded(t, standby) == was {
		t.Fatal("nothing was lost: the test tests nothing")
	}
	address.Lead(standby.Addr())
	address.Heal()
	testkit.Eventually(t, 20*time.Second, func() (bool, string) {
		now, remembered, _, err := l.Server(t.Context())
		return err == nil && now != before && remembered == before, fmt.Sprintf("the server is %q, before %q, and the database remembers %q: %v", now, before, remembered, err)
	})
	apply(t, l, kept...)
	finalise(t, l)
	if is := recorded(t, standby); is != was {
		t.Errorf("recorded was\n%s\nand is\n%s", was, is)
	}
	wantTotals(t, l, "lot", 50, 0, 21)
	wantVerified(t, l, "lot")
}

// reopened opens the ledger, after doing something while the server is down.
func reopened(t *testing.T, server *lab.Postgres, whileDown func()) *Ledger {
	t.Helper()
	if whileDown != nil {
		if err := server.Kill(); err != nil {
			t.Fatal(err)
		}
		whileDown()
		if err := server.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	l, err := Open(t.Context(), Options{URL: server.SocketURL(lab.App, lab.Database)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

// recorded is what the ledger has of the lot `lot`, times of recording apart.
func recorded(t *testing.T, server *lab.Postgres) string {
	t.Helper()
	out, err := server.SQL(t.Context(), lab.Database, `SELECT seq, hash FROM reservation_events WHERE lot = 'lot' ORDER BY seq;
		SELECT n, state, qty, refunded, last_seq FROM reservations WHERE lot = 'lot' ORDER BY n;
		SELECT n, entry, kind, units, ref FROM order_ledger WHERE lot = 'lot' ORDER BY n, entry`)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func run(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
}

// The connection breaks exactly at the COMMIT: before the server has it, or when it is done and nobody hears. Either
// way the same call, repeated, has everything once.
func TestAConnectionLostInMidCommitIsExactlyOnce(t *testing.T) {
	db := migrated(t)
	direct := open(t, db)
	for name, carriedOut := range map[string]bool{"before it": false, "after it": true} {
		t.Run(name, func(t *testing.T) {
			p := newCommitCutter(t, db.Server.Addr(), carriedOut)
			l, err := Open(t.Context(), Options{URL: p.url(t, db.Server.URL(lab.App, db.Name)), Timeout: 5 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			lot := newLot()
			r := seeded(t, direct, lot, 10)
			res := r.hold("ann", 3)
			r.confirm(res, 3, "pay")
			r.paidLate(res, "twice")
			events := r.take()

			cut(t, p, func() error { _, err := l.Apply(t.Context(), events, nil); return err })
			if folded := lotOf(t, direct, lot).Watermark.Seq > 0; folded != carriedOut {
				t.Errorf("folded: %v", folded)
			}
			apply(t, l, events...)
			wantTotals(t, direct, lot, 10, 0, 3)

			cut(t, p, func() error { _, err := l.Finalise(t.Context(), 100); return err })
			if n := finaliseOnce(t, l); n != map[bool]int{false: 1, true: 0}[carriedOut] {
				t.Errorf("finalised %d", n)
			}
			if s := salesOf(t, direct, lot); s != (Sales{Sold: 3, Net: 3}) {
				t.Errorf("sales %+v", s)
			}

			cut(t, p, func() error {
				_, err := l.IssueEpoch(t.Context(), lot, IssueRequest{Actor: "test", Reason: "test"})
				return err
			})
			issued := issue(t, l, lot)
			if want := map[bool]int64{false: 2, true: 3}[carriedOut]; issued.Epoch != want || issued.Closing != r.emitted() {
				t.Errorf("issued %+v, want epoch %d", issued, want)
			}
			r.load(issued)
			apply(t, l, r.take()...)
			wantTotals(t, direct, lot, 10, 0, 3)
			if v, err := l.Verify(t.Context(), lot, nil); err != nil || v.Bad != "" || v.Units != 3 {
				t.Errorf("verify: %+v, %v", v, err)
			}
			if due := dueRefs(t, direct, lot); due != "paid_late:twice:3" {
				t.Errorf("refunds due: %s", due)
			}
		})
	}
}

// The link is cut while the server is at the COMMIT: it waits for a standby that nobody has, and is told to wait no more when
// nobody can hear it. The same call, repeated over the healed link, has everything once.
func TestALinkCutInMidCommitIsExactlyOnce(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	server, link := testkit.PostgresAcross(t, lab.PostgresOptions{NoFsync: true})
	owner := Options{URL: server.SocketURL(lab.Owner, lab.Database)}
	if _, err := MigrateUp(t.Context(), owner, MigrateOptions{AppRole: string(lab.App), Shards: 4}); err != nil {
		t.Fatal(err)
	}
	sql := func(statements string) string {
		t.Helper()
		out, err := server.SQL(t.Context(), lab.Database, statements)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	l, err := Open(t.Context(), Options{URL: link.URL(t, server.URL(lab.App, lab.Database)), Timeout: 3 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for name, cut := range map[string]func(){"both ways": link.Cut, "replies": link.CutReplies} {
		lot := newLot()
		r := seeded(t, l, lot, 10)
		r.confirm(r.hold("ann", 3), 3, "pay")
		events := r.take()

		sql(`ALTER SYSTEM SET synchronous_standby_names = 'nobody'; SELECT pg_reload_conf()`)
		inCommit := func() string { return sql(`SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'`) }
		free := make(chan bool, 1) // the setting takes effect a little later: commits are tried until one waits
		free <- true
		testkit.Eventually(t, 30*time.Second, func() (bool, string) {
			select {
			case <-free:
				go func() {
					_, _ = server.SQL(t.Context(), lab.Database, `SELECT pg_logical_emit_message(true, '', '')`)
					free <- true
				}()
			default:
			}
			return inCommit() == "1", "no commit waits"
		})
		answer := make(chan error, 1)
		go func() { _, err := l.Apply(t.Context(), events, nil); answer <- err }()
		testkit.Eventually(t, 30*time.Second, func() (bool, string) { return inCommit() == "2", "the call does not wait in its commit" })
		cut()
		sql(`ALTER SYSTEM RESET synchronous_standby_names; SELECT pg_reload_conf()`)
		if err := <-answer; !fault.Is(err, fault.Unavailable) {
			t.Errorf("%s cut: the call returned %v", name, err)
		}
		testkit.Eventually(t, 30*time.Second, func() (bool, string) {
			sold := sql(fmt.Sprintf("SELECT sold FROM lots WHERE lot = '%s'", lot))
			return sold == "3", name + " cut: behind the cut was sold " + sold
		})
		link.Heal()
		testkit.Eventually(t, 60*time.Second, func() (bool, string) {
			_, err := l.Apply(t.Context(), events, nil)
			return err == nil, fmt.Sprintf("%s cut, and healed: %v", name, err)
		})
		wantTotals(t, l, lot, 10, 0, 3)
		finaliseOnce(t, l)
		if s := salesOf(t, l, lot); s != (Sales{Sold: 3, Net: 3}) {
			t.Errorf("%s cut: sales %+v", name, s)
		}
		if v, err := l.Verify(t.Context(), lot, nil); err != nil || v.Bad != "" || v.Units != 3 {
			t.Errorf("%s cut: verify: %+v, %v", name, v, err)
		}
	}
}

// cut runs a call whose COMMIT is cut.
func cut(t *testing.T, p *commitCutter, call func() error) {
	t.Helper()
	p.armed.Store(true)
	if err := call(); !fault.Is(err, fault.Unavailable) {
		t.Errorf("the call with a cut commit returned %v", err)
	}
	if p.armed.Load() {
		t.Fatal("no COMMIT was sent")
	}
}

// commitCutter carries connections to a server and, once armed, breaks the first that sends a COMMIT.
type commitCutter struct {
	listener   net.Listener
	upstream   string
	carriedOut bool // the COMMIT still reaches the server, and its reply is swallowed
	armed      atomic.Bool
	wait       sync.WaitGroup
}

func newCommitCutter(t *testing.T, upstream string, carriedOut bool) *commitCutter {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &commitCutter{listener: listener, upstream: upstream, carriedOut: carriedOut}
	p.wait.Go(p.serve)
	t.Cleanup(func() {
		_ = listener.Close()
		p.wait.Wait()
	})
	return p
}

func (p *commitCutter) url(t *testing.T, server string) string {
	t.Helper()
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal("not a URL") // without it: it has a password
	}
	u.Host = p.listener.Addr().String()
	return u.String()
}

func (p *commitCutter) serve() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.upstream)
		if err != nil {
			_ = client.Close()
			continue
		}
		p.wait.Go(func() { p.carry(client, server) })
	}
}

func (p *commitCutter) carry(client, server net.Conn) {
	var muted atomic.Bool
	replies := make(chan struct{})
	go func() {
		defer close(replies)
		buffer := make([]byte, 64<<10)
		for {
			n, err := server.Read(buffer)
			if muted.Load() || err != nil {
				_ = client.Close() // the COMMIT was answered, or the server is gone
				_ = server.Close()
				return
			}
			_, _ = client.Write(buffer[:n])
		}
	}()
	buffer := make([]byte, 64<<10)
	for {
		n, err := client.Read(buffer)
		if err != nil {
			break
		}
		if bytes.Contains(buffer[:n], []byte("commit\x00")) && p.armed.CompareAndSwap(true, false) {
			if !p.carriedOut {
				break
			}
			muted.Store(true)
		}
		if _, err := server.Write(buffer[:n]); err != nil {
			break
		}
	}
	if !muted.Load() {
		_ = server.Close()
	}
	<-replies
	_ = client.Close()
}

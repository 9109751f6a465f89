package compare

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/retry"
)

// Audit is what was counted outside a model: claims are what callers were told they got, and nothing else is believed.
type Audit struct {
	Units     int64 `json:"units"`
	Claims    int64 `json:"claims"`     // sold, or held when everything was sold out
	Oversold  int64 `json:"oversold"`   // claims beyond the units
	Unsold    int64 `json:"unsold"`     // units that nobody could get although nobody has them: they are lost
	OverLimit int64 `json:"over_limit"` // claims of users who had one
}

// audit compares what callers were told with what there was. Everything must have been offered until it was sold out.
func audit(book []claim, units int64) Audit {
	owners := map[claim]bool{}
	for _, c := range book {
		owners[claim{lot: c.lot, user: c.user}] = true
	}
	n := int64(len(book))
	return Audit{Units: units, Claims: n, Oversold: max(0, n-units), Unsold: max(0, units-n), OverLimit: n - int64(len(owners))}
}

const drillLot = drop.LotID("drill")

// sellOut sells a lot out under a crowd in which everybody clicks twice, and counts.
func (a *arena) sellOut(ctx context.Context, m Model, pool int) (_ Audit, err error) {
	s, _, err := a.enter(ctx, m, pool, []drop.LotID{drillLot}, a.drillUnits)
	if err != nil {
		return Audit{}, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	var book book
	err = a.buyAll(ctx, s, "crowd", &book)
	return audit(book.claims, a.drillUnits), err
}

// book is what callers were told.
type book struct {
	mu     sync.Mutex
	claims []claim
}

func (b *book) enter(c claim) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.claims = append(b.claims, c)
}

func (b *book) len() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return int64(len(b.claims))
}

// buyAll lets a crowd buy until everybody was told that nothing is left. As a refusal may be a matter of a moment, such
// as while somebody else has not made up his mind, one caller asks a few times more.
func (a *arena) buyAll(ctx context.Context, s shop, crowd string, book *book) error {
	var users atomic.Int64
	var callers errgroup.Group
	for range a.drillCallers {
		callers.Go(func() error {
			for {
				over, err := clickTwice(ctx, s, crowd+strconv.FormatInt(users.Add(1), 10), book)
				if over || err != nil {
					return err
				}
			}
		})
	}
	if err := callers.Wait(); err != nil {
		return err
	}
	for refusals := 0; refusals < 3; {
		over, err := clickTwice(ctx, s, crowd+strconv.FormatInt(users.Add(1), 10), book)
		if err != nil {
			return err
		}
		if over {
			refusals++
			if err := retry.Sleep(ctx, moment); err != nil {
				return err
			}
		}
	}
	return nil
}

// clickTwice asks twice at the same time, as impatient people do; over says that the lot is sold out.
func clickTwice(ctx context.Context, s shop, user string, book *book) (over bool, err error) {
	var twins errgroup.Group
	var told atomic.Bool
	click := func() error {
		c, err := s.Reserve(ctx, drillLot, user, longHold)
		switch {
		case err == nil:
			book.enter(c)
		case fault.Is(err, fault.SoldOut):
			told.Store(true)
		case !fault.Is(err, fault.CustomerLimit):
			return wrong(err)
		}
		return nil
	}
	twins.Go(click)
	twins.Go(click)
	err = twins.Wait()
	return told.Load(), err
}

// crash lets client processes die in the middle of their requests while others sell, gives the model the time of their
// holds to take back what they had, and sells out what there is then. Units that do not turn up are leaked.
func (a *arena) crash(ctx context.Context, m Model, pool int) (_ Audit, err error) {
	s, _, err := a.enter(ctx, m, pool, []drop.LotID{drillLot}, a.drillUnits)
	if err != nil {
		return Audit{}, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	book := &book{}
	g, working := errgroup.WithContext(ctx)
	g.Go(func() error { return a.sellSome(working, s, book) })
	dice := a.dice(m)
	dying := make(chan struct{}, 4) // at once
	for i := range a.deaths {
		d := death{name: "dead" + strconv.Itoa(i) + "-", after: 1 + dice.IntN(6), delivered: dice.IntN(2) == 0}
		g.Go(func() error {
			dying <- struct{}{}
			defer func() { <-dying }()
			return a.die(working, m, d)
		})
	}
	if err := g.Wait(); err != nil {
		return Audit{}, err
	}
	err = a.recover(ctx, s, book)
	return audit(book.claims, a.drillUnits), err
}

// recover sells what comes back of those who died: as often as it takes, and once more after their holds and locks must
// be over.
func (a *arena) recover(ctx context.Context, s shop, book *book) error {
	over := time.Now().Add(shortHold + lockTTL + a.grace)
	if err := retry.Sleep(ctx, shortHold); err != nil {
		return err
	}
	for pass := 1; ; pass++ {
		begun := time.Now()
		if err := s.Sweep(ctx); err != nil {
			return wrong(err)
		}
		if err := a.buyAll(ctx, s, "later"+strconv.Itoa(pass)+"-", book); err != nil {
			return err
		}
		if book.len() >= a.drillUnits || begun.After(over) {
			return nil
		}
		if err := retry.Sleep(ctx, 10*moment); err != nil {
			return err
		}
	}
}

// moment is what somebody takes to make up his mind.
const moment = 20 * time.Millisecond

// shortHold is the hold of a client that dies.
const shortHold = time.Second

// sellSome sells a quarter of the lot for good, beside those who die.
func (a *arena) sellSome(ctx context.Context, s shop, book *book) error {
	const callers = 8
	var g errgroup.Group
	for caller := range callers {
		g.Go(func() error {
			for i := range a.drillUnits / 4 / callers {
				c, err := s.Reserve(ctx, drillLot, "buyer"+strconv.Itoa(caller)+"-"+strconv.FormatInt(i, 10), longHold)
				if err == nil {
					err = s.Confirm(ctx, c)
				}
				if err != nil {
					return wrong(err)
				}
				book.enter(c)
			}
			return nil
		})
	}
	return g.Wait()
}

// death is how a client ends: after so many more messages, the last of which may still reach the server.
type death struct {
	name      string // with which the names of its users begin
	after     int
	delivered bool
}

// die runs one client process until it dies. What it holds it never pays.
func (a *arena) die(ctx context.Context, m Model, d death) error {
	address, upstream := a.postgres.URL(lab.Superuser, lab.Database), a.postgres.Addr()
	if redis := a.redisOf(m); redis != nil {
		address, upstream = redis.URL(), redis.Addr()
	}
	dying, dead := context.WithCancel(ctx)
	defer dead()
	k, err := newLink(ctx, upstream, dead)
	if err != nil {
		return err
	}
	defer k.close()
	if address, err = k.url(address); err != nil {
		return err
	}
	s, err := m.open(dying, client{address, 1, &counts{}})
	if err != nil {
		return wrong(err)
	}
	defer func() { _ = s.Close() }()
	if _, err := s.Reserve(dying, drillLot, d.name, shortHold); err != nil {
		return wrong(err)
	}
	k.breakAfter(d.after, d.delivered)
	for i := 0; dying.Err() == nil; i++ {
		if _, err := s.Reserve(dying, drillLot, d.name+strconv.Itoa(i), shortHold); refused(err) {
			return fault.Wrap(fault.Failed, err, "a client that was to die")
		}
	}
	return context.Cause(ctx)
}

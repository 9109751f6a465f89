package worker

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/retry"
)

// Gateway asks for money and gives it back. An error says that nothing certain is known: the money may have moved. Asked
// again under the same key it moves once.
type Gateway interface {
	// Charge and Refund return what the gateway has decided, also that it has not yet. Many goroutines ask at once.
	Charge(ctx context.Context, c drop.Charge) (drop.Payment, error)
	Refund(ctx context.Context, r drop.ChargeRefund) (drop.Payment, error)
	// Timeout is how long one question may take.
	Timeout() time.Duration
}

// Charges is what finalise needs of PostgreSQL when there is a gateway.
type Charges interface {
	// ClaimCharges and ClaimChargeRefunds give the worker up to limit questions to ask, which no other one is given until the
	// lease ends.
	ClaimCharges(ctx context.Context, worker string, lease time.Duration, limit int) ([]drop.Charge, error)
	ClaimChargeRefunds(ctx context.Context, worker string, lease time.Duration, limit int) ([]drop.ChargeRefund, error)
	// RecordPayment and RecordRefund record an answer; what is not definite is asked for again after the pause.
	RecordPayment(ctx context.Context, id drop.ReservationID, number int, p drop.Payment, pause time.Duration) (replayed bool, err error)
	RecordRefund(ctx context.Context, r drop.ChargeRefund, p drop.Payment, pause time.Duration) error
	// PostponeCharge and PostponeRefund give back what there was no clear answer to.
	PostponeCharge(ctx context.Context, worker string, c drop.Charge, pause time.Duration) error
	PostponeRefund(ctx context.Context, worker string, r drop.ChargeRefund, pause time.Duration) error
	// ClaimGivenUp returns reservations that nobody has paid for in time: they are to be refunded.
	ClaimGivenUp(ctx context.Context, lease time.Duration, limit int) ([]drop.ReservationID, error)
	// Unpaid returns how many confirmed reservations and refunds this worker could do something about.
	Unpaid(ctx context.Context) (int64, error)
}

const (
	lease         = 30 * time.Second // of what is given up
	chargesAtOnce = 32               // questions that a worker has open at the gateway
	chargeMargin  = 30 * time.Second
	longestCharge = 20 // times the first pause: the longest one between two questions
	declined      = "payment declined"
)

// cashier is finalise with a payment gateway. No transaction and no script is open while the gateway is asked, and every
// question is recorded before it is asked: whoever takes over from a dead worker asks the same one again.
type cashier struct {
	*Worker
	asking   sync.WaitGroup
	open     atomic.Int64 // questions at the gateway
	failures atomic.Int64 // in a row, without a clear answer between them
	gaveUp   time.Time    // when it was looked for what nobody pays for

	chargesFirst bool // refunds were asked for last
}

// charge runs until the context ends; the answers that are under way are then waited for no longer.
func (c *cashier) charge(ctx context.Context) error {
	within, breakOff := context.WithCancel(ctx)
	defer c.asking.Wait()
	defer breakOff()
	pause := backoff{}
	for {
		again := c.answering()
		asked, err := c.round(within)
		switch {
		case fatal(err):
			return err
		case err != nil:
			c.health.failed("finalise", err)
			if !pause.wait(ctx, again) {
				return nil
			}
			continue
		}
		pause = backoff{}
		c.health.fine("finalise")
		if asked && c.room() > 0 && ctx.Err() == nil {
			continue
		}
		if !sleep(ctx, finaliseEvery, c.confirmed) {
			return nil
		}
	}
}

// room is how many questions may be asked now. A gateway that gives no clear answer gets one at a time until it does.
func (c *cashier) room() int {
	room := chargesAtOnce - int(c.open.Load())
	if c.failures.Load() > 0 {
		return min(room, max(0, 1-int(c.open.Load())))
	}
	return room
}

// round begins to ask what there is room for, and reports whether that was anything.
func (c *cashier) round(ctx context.Context) (asked bool, err error) {
	if time.Since(c.gaveUp) > finaliseEvery {
		if err := c.giveUp(ctx); err != nil {
			return false, err
		}
		c.gaveUp = time.Now()
	}
	if n := int(c.failures.Load()); n > 0 && !sleep(ctx, retry.Pause(n, firstPause, maxPause), nil) {
		return false, nil
	}
	// By turns, so that a gateway which is in trouble with the ones still gets the others.
	kinds := []func(context.Context, int) (int, error){c.beginRefunds, c.beginCharges}
	if c.chargesFirst {
		slices.Reverse(kinds)
	}
	for _, begin := range kinds {
		room := c.room()
		if room <= 0 {
			break
		}
		n, err := begin(ctx, room)
		if err != nil {
			return asked, err
		}
		asked = asked || n > 0
	}
	if !asked && c.failures.Load() > 0 && c.open.Load() == 0 {
		return false, c.forgetTrouble(ctx)
	}
	return asked, nil
}

// term is how long a question is leased.
func (c *cashier) term() time.Duration { return c.opt.Gateway.Timeout() + chargeMargin }

// beginRefunds begins to ask for refunds, and returns how many.
func (c *cashier) beginRefunds(ctx context.Context, room int) (int, error) {
	leased := time.Now().Add(c.term())
	refunds, err := c.ledger.ClaimChargeRefunds(context.WithoutCancel(ctx), c.me.Name, c.term(), room)
	for _, r := range refunds {
		c.chargesFirst = true
		c.begin(ctx, func(ctx context.Context) error { return c.refundOne(ctx, r, leased) })
	}
	return len(refunds), err
}

// beginCharges begins to ask for charges, and returns how many.
func (c *cashier) beginCharges(ctx context.Context, room int) (int, error) {
	leased := time.Now().Add(c.term())
	charges, err := c.ledger.ClaimCharges(context.WithoutCancel(ctx), c.me.Name, c.term(), room)
	for _, ch := range charges {
		c.chargesFirst = false
		c.begin(ctx, func(ctx context.Context) error { return c.chargeOne(ctx, ch, leased) })
	}
	return len(charges), err
}

// begin asks one question beside the others.
func (c *cashier) begin(ctx context.Context, ask func(context.Context) error) {
	c.open.Add(1)
	c.asking.Go(func() {
		err := recovered(ctx, ask)
		c.open.Add(-1)
		switch {
		case err == nil:
			c.failures.Store(0)
			c.health.fine(gatewayLoop)
		case ctx.Err() == nil:
			c.failures.Add(1)
			c.health.failed(gatewayLoop, err)
		}
		c.wakeFinalise() // there is room for another
	})
}

// gatewayLoop names the trouble with the gateway; it is one of finalise.
const gatewayLoop = "finalise/gateway"

// forgetTrouble ends a trouble with the gateway when nothing is left to ask it: what failed was settled otherwise.
func (c *cashier) forgetTrouble(ctx context.Context) error {
	left, err := c.ledger.Unpaid(ctx)
	if err == nil && left == 0 {
		c.failures.Store(0)
		c.health.fine(gatewayLoop)
	}
	return err
}

func (c *cashier) chargeOne(ctx context.Context, ch drop.Charge, leased time.Time) error {
	start := time.Now()
	p, err := c.opt.Gateway.Charge(ctx, ch)
	c.metrics.ChargeSeconds.Observe(time.Since(start).Seconds())
	if err != nil {
		c.metrics.Charges.WithLabelValues("unclear").Inc()
		return c.postponed(ctx, err, leased, func(ctx context.Context) error {
			return c.ledger.PostponeCharge(ctx, c.me.Name, ch, c.retryIn(ctx, ch.Asked))
		})
	}
	c.metrics.Charges.WithLabelValues(string(p.Decision)).Inc()
	times := ch.Asked
	if p.Decision == drop.PaymentDeclined {
		times = ch.Number
	}
	err = c.persist(ctx, leased, func(ctx context.Context) error {
		_, err := c.ledger.RecordPayment(ctx, ch.Reservation, ch.Number, p, c.patience(times))
		return err
	})
	switch {
	case err == nil && p.Decision == drop.PaymentApproved:
		c.done.finalised.Add(1)
		c.metrics.Finalised.Inc()
	case fault.Is(err, fault.Conflict): // it is decided, and stays so
		c.log.Error("the payment gateway contradicts itself", "charge", ch.Key(), "says", p.Decision, "error", err)
		return nil
	case fault.Is(err, fault.Failed):
		return c.postponed(ctx, err, leased, func(ctx context.Context) error {
			return c.ledger.PostponeCharge(ctx, c.me.Name, ch, c.patience(ch.Asked))
		})
	}
	return err
}

func (c *cashier) refundOne(ctx context.Context, r drop.ChargeRefund, leased time.Time) error {
	p, err := c.opt.Gateway.Refund(ctx, r)
	if err != nil {
		c.metrics.ChargeRefunds.WithLabelValues("unclear").Inc()
		return c.postponed(ctx, err, leased, func(ctx context.Context) error {
			return c.ledger.PostponeRefund(ctx, c.me.Name, r, c.retryIn(ctx, r.Asked))
		})
	}
	c.metrics.ChargeRefunds.WithLabelValues(string(p.Decision)).Inc()
	if p.Decision == drop.PaymentDeclined {
		c.log.Error("the payment gateway will not give money back; it is asked again", "refund", r.Key(), "reason", p.Reason, "next", "dropctl status")
	}
	return c.persist(ctx, leased, func(ctx context.Context) error { return c.ledger.RecordRefund(ctx, r, p, c.patience(r.Asked)) })
}

// postponed gives back what had no clear answer, and returns why it had none.
func (c *cashier) postponed(ctx context.Context, why error, leased time.Time, postpone func(context.Context) error) error {
	if err := c.persist(ctx, leased, postpone); err != nil {
		c.log.Debug("what was asked stays claimed until the lease ends", "error", err)
	}
	return why
}

// persist writes what became of a claim. Dropping it would block its reservations for the rest of the lease, so it is tried
// again until then, and a stop lets the attempt under way end. What the ledger refuses for good is tried once.
func (w *Worker) persist(ctx context.Context, leased time.Time, write func(context.Context) error) error {
	pause := backoff{}
	for {
		again := w.answering()
		err := write(context.WithoutCancel(ctx))
		if err == nil || fault.ExitOf(err) != fault.ExitUnavailable || fatal(err) || time.Now().After(leased) {
			return err
		}
		w.health.failed("finalise", err)
		if !pause.wait(ctx, again) {
			return err
		}
	}
}

// retryIn is the pause after a question without a clear answer. One that was broken off because the worker stops is asked
// again at once, by another.
func (c *cashier) retryIn(ctx context.Context, times int) time.Duration {
	if ctx.Err() != nil {
		return 0
	}
	return retry.Pause(times, c.opt.ChargePause, longestCharge*c.opt.ChargePause)
}

// patience is the pause before a gateway that gave a clear answer is asked again: never at once.
func (c *cashier) patience(times int) time.Duration {
	return c.opt.ChargePause/2 + retry.Pause(times, c.opt.ChargePause, longestCharge*c.opt.ChargePause)
}

// giveUp refunds what nobody has paid for within the hold's time, so that others can have it. The ledger hears of it as of
// any refund; until then the claim keeps others from doing the same, which would change nothing.
func (c *cashier) giveUp(ctx context.Context) error {
	ids, err := c.ledger.ClaimGivenUp(context.WithoutCancel(ctx), lease, finaliseBatch)
	if err != nil {
		return err
	}
	silent := 0
	for _, id := range ids {
		_, err := c.stock.Settle(ctx, drop.SettleRequest{ID: id, Action: drop.ActRefund, Total: -1, Actor: "worker", Reason: declined})
		switch {
		case shut(err): // it is claimed again
			continue
		case err != nil && ctx.Err() != nil:
			return nil //nolint:nilerr // the others are claimed again, too
		case fault.ExitOf(err) == fault.ExitUnavailable:
			c.health.failed(stockLoop, err)
			if silent++; silent == 3 { // of the others it would be the same
				return nil
			}
			continue
		case err != nil:
			c.log.Error("a reservation that nobody paid for could not be refunded", "reservation", id, "error", err, "next", "dropctl reconcile "+string(id.Lot))
			continue
		}
		c.metrics.GivenUp.Inc()
		c.health.fine(stockLoop)
	}
	return nil
}

// stockLoop names the trouble with Redis; it is one of finalise.
const stockLoop = "finalise/stock"

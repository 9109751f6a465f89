package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/cli/wire"
	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/ledger"
)

// The states of an event that is not recorded.
const (
	outboxPending = "pending"
	outboxWaiting = "waiting"
	outboxDead    = "dead"
)

// outboxFilter is what of the outbox is to be listed.
type outboxFilter struct {
	state string // "": all
	lot   drop.LotID
	after int64 // dead letter
	limit int
}

func newOutboxList(a *app) *cobra.Command {
	var state, lot, after string
	var limit *number
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List events that the ledger has not folded",
		Long: `List what happened in Redis and is not recorded yet, or cannot be:

  dead     the ledger could not record it; it stays until it is tried again or given up
  waiting  the ledger has it, but lacks one before it, or its lot is stopped
  pending  Redis has it, and no worker has handed it over; normal, if it is young

-o json shows the full content. Dead letters come first, the newest ahead; the others in order.
If there are more than --limit, stderr says so.`,
		Example: `  dropctl outbox list
  dropctl outbox list --state dead -o json
  dropctl outbox list --state pending --lot truffle-99`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f, err := readOutboxFilter(state, lot, after)
			if err != nil {
				return err
			}
			f.limit = int(limit.or(100))
			return a.listOutbox(cmd.Context(), f)
		},
	}
	cmd.Flags().StringVar(&state, "state", "", "only in this state: pending, waiting or dead")
	cmd.Flags().StringVar(&lot, "lot", "", "only of this lot")
	limit = numberFlag(cmd, "limit", 1, "list at most this many (default 100)")
	cmd.Flags().StringVar(&after, "after", "", "with --state dead: go on behind this one")
	a.settings(cmd, cmd.Flags(), config.Redis, config.Database)
	_ = cmd.RegisterFlagCompletionFunc("state", completeWords(outboxPending, outboxWaiting, outboxDead))
	_ = cmd.RegisterFlagCompletionFunc("lot", a.completeFrom(a.recordedLots))
	_ = cmd.RegisterFlagCompletionFunc("after", a.completeFrom(a.deadLetters))
	completeNothing(cmd, "limit")
	return cmd
}

func readOutboxFilter(state, lot, after string) (f outboxFilter, err error) {
	switch f.state = state; state {
	case "", outboxPending, outboxWaiting, outboxDead:
	default:
		return f, fault.New(fault.Invalid, "--state is %.40q", state).WithField("state").WithHint("use pending, waiting or dead")
	}
	if lot != "" {
		if f.lot, err = drop.ParseLotID(lot); err != nil {
			return f, err
		}
	}
	if after != "" {
		if state != outboxDead {
			return f, fault.New(fault.Usage, "--after goes with --state dead only").WithField("after")
		}
		f.after, err = readLetter(after)
	}
	return f, err
}

// unrecordedView is the contract of one event that is not recorded, or of a line that is no event.
type unrecordedView struct {
	ID          string             `json:"id" table:"ID,name"` // a dead letter's number; else lot/epoch/seq
	State       string             `json:"state" table:"STATE"`
	Lot         drop.LotID         `json:"lot" table:"LOT"` // "" where it is not known
	Epoch       int64              `json:"epoch" table:"EPOCH"`
	Seq         int64              `json:"seq" table:"SEQ"`   // 0 where it is not known
	Kind        drop.Kind          `json:"kind" table:"KIND"` // "" for what is no event
	Reservation drop.ReservationID `json:"reservation" table:"RESERVATION,wide"`
	User        string             `json:"user" table:"USER,wide"`
	Units       int64              `json:"units" table:"UNITS,wide"`
	Payment     string             `json:"payment" table:"PAYMENT,wide"`
	Age         time.Duration      `json:"age_seconds" table:"AGE"` // pending: since it happened; else since the ledger has it
	Code        fault.Code         `json:"code" table:"CODE"`       // why it is dead, or why its lot is stopped
	Reason      string             `json:"reason" table:"REASON"`
	Time        time.Time          `json:"time" table:"TIME,wide"`         // when it happened, by Redis' clock
	Recorded    time.Time          `json:"recorded" table:"RECORDED,wide"` // when the ledger got it; null: it has not
	Entry       string             `json:"entry" table:"ENTRY,wide"`       // pending: shard and id of the stream's entry
	Content     string             `json:"content"`                        // as Redis wrote it
}

func viewEvent(ev drop.Event, state string) unrecordedView {
	return unrecordedView{ID: placeText(ev.Lot, ev.Watermark()), State: state, Lot: ev.Lot, Epoch: ev.Epoch, Seq: ev.Seq, Kind: ev.Kind,
		Reservation: ev.Reservation, User: ev.User, Units: ev.Qty, Payment: ev.Ref, Time: ev.Time, Content: ev.Line()}
}

func (a *app) listOutbox(ctx context.Context, f outboxFilter) error {
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	l, err := a.openLedger(ctx)
	if err != nil {
		return err
	}
	defer l.Close()
	views := []unrecordedView{}
	for _, part := range []struct {
		state string
		list  func(context.Context, *ledger.Ledger, outboxFilter) ([]unrecordedView, error)
	}{{outboxDead, listDead}, {outboxWaiting, listWaiting}, {outboxPending, a.listPending}} {
		if f.state != "" && f.state != part.state || len(views) > f.limit {
			continue
		}
		more, err1 := part.list(ctx, l, f)
		views = append(views, more...)
		if err = err1; err != nil {
			break
		}
	}
	more := len(views) > f.limit
	views = views[:min(f.limit, len(views))]
	if err != nil && len(views) == 0 {
		return err
	}
	if printed := a.print(views); printed != nil {
		return printed
	}
	switch {
	case len(views) == 0 && a.errTerm.TTY:
		a.note("everything is recorded")
	case more && f.state == outboxDead:
		a.note("there are more: add --limit %d --after %s", f.limit, views[f.limit-1].ID)
	case more:
		a.note("there are more: add --limit %d", 10*f.limit)
	}
	return err
}

func listDead(ctx context.Context, l *ledger.Ledger, f outboxFilter) ([]unrecordedView, error) {
	letters, err := l.DeadLetters(ctx, f.lot, f.after, f.limit+1)
	views := make([]unrecordedView, len(letters))
	for i, d := range letters {
		v := unrecordedView{Lot: d.Lot, Epoch: d.Epoch, Seq: d.Seq, Time: d.At}
		if ev, ok := d.Event(l.Installation().ID); ok {
			v = viewEvent(ev, outboxDead)
		}
		v.ID, v.State, v.Code, v.Reason, v.Recorded, v.Age, v.Content = strconv.FormatInt(d.ID, 10), outboxDead, d.Code, d.Reason, d.RecordedAt, age(d.RecordedAt), d.Line
		views[i] = v
	}
	return views, err
}

func listWaiting(ctx context.Context, l *ledger.Ledger, f outboxFilter) ([]unrecordedView, error) {
	events, err := l.WaitingList(ctx, f.lot, f.limit+1)
	views := make([]unrecordedView, len(events))
	for i, w := range events {
		v := viewEvent(w.Event, outboxWaiting)
		v.Code, v.Recorded, v.Age = w.Stopped, w.RecordedAt, age(w.RecordedAt)
		v.Reason = fmt.Sprintf("the lot is recorded up to %d/%d, and the next one is missing", w.Mark.Epoch, w.Mark.Seq)
		if w.Stopped != "" {
			v.Reason = "the lot is stopped"
		}
		views[i] = v
	}
	return views, err
}

// wideLook is how many entries of a shard are looked at for those of one lot.
const wideLook = 10_000

// listPending looks into the outboxes of all shards, or of the lot's.
func (a *app) listPending(ctx context.Context, l *ledger.Ledger, f outboxFilter) ([]unrecordedView, error) {
	s, err := wire.OpenStock(a.cfg, a.getenv, l.Installation())
	if err != nil {
		return nil, err
	}
	defer func() { _ = s.Close() }()
	first, last, entries := 0, s.Shards()-1, f.limit+1
	if f.lot != "" {
		first, entries = f.lot.Shard(s.Shards()), max(wideLook, f.limit+1)
		last = first
	}
	var views []unrecordedView
	for shard := first; shard <= last && len(views) <= f.limit; shard++ {
		found, err := s.Unacknowledged(ctx, shard, entries)
		if err != nil {
			return views, err
		}
		for _, e := range found {
			views = append(views, viewEntry(shard, e, f.lot)...)
		}
	}
	return views, nil
}

// viewEntry shows the events of an entry, and its lines that are none; of a lot or, for "", all.
func viewEntry(shard int, e drop.OutboxEntry, lot drop.LotID) []unrecordedView {
	events, poison := e.Decode()
	var views []unrecordedView
	for _, ev := range events {
		views = append(views, viewEvent(ev, outboxPending))
	}
	for _, p := range poison {
		views = append(views, unrecordedView{ID: fmt.Sprintf("%s/%d/?", p.Lot, p.Epoch), State: outboxPending, Lot: p.Lot, Epoch: p.Epoch, Time: e.Time,
			Code: fault.Invalid, Reason: p.Reason, Content: strings.ToValidUTF8(p.Raw, "?")})
	}
	kept := views[:0]
	for _, v := range views {
		if lot == "" || v.Lot == lot {
			v.Entry, v.Age = fmt.Sprintf("%d/%s", shard, e.ID), age(e.Time)
			kept = append(kept, v)
		}
	}
	return kept
}

func age(since time.Time) time.Duration {
	return max(0, time.Since(since)).Round(time.Second)
}

package wire

import (
	"math"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
)

// BacklogView is a backlog as programs read it, from `status` and /readyz alike. What is null is not known, or never.
type BacklogView struct {
	Fullest float64  `json:"outbox_ceiling_ratio"` // how full the fullest outbox is: at 1 its lots take no holds
	Entries int64    `json:"pending_entries"`      // of the outboxes, not acknowledged
	Events  *int64   `json:"lag_events"`           // written and not folded
	Lag     float64  `json:"lag_seconds"`          // how old the oldest of them is
	Limit   *float64 `json:"limit_events_per_second"`
	Seen    *float64 `json:"seen_events_per_second"`
	AtLimit *float64 `json:"drain_limit_seconds"` // what the ledger has not got, if nothing is added
	AtSeen  *float64 `json:"drain_seen_seconds"`
}

// ViewBacklog words a backlog; the ceiling is that of an outbox, in bytes.
func ViewBacklog(b drop.Backlog, ceiling int64) BacklogView {
	v := BacklogView{Entries: b.Entries, Lag: b.Lag.Round(time.Millisecond).Seconds()}
	if ceiling > 0 {
		v.Fullest = math.Round(1000*float64(b.Fullest)/float64(ceiling)) / 1000
	}
	if b.Known {
		limit, seen := b.Drain()
		v.Events, v.Limit, v.Seen = &b.Events, &b.Pace.Limit, &b.Pace.Seen
		v.AtLimit, v.AtSeen = secondsOf(limit), secondsOf(seen)
	}
	return v
}

func secondsOf(d time.Duration) *float64 {
	if d == drop.Never {
		return nil
	}
	seconds := d.Round(time.Millisecond).Seconds()
	return &seconds
}

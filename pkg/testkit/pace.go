package testkit

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dropctl/dropctl/pkg/lab"
)

// FastEnough fails a benchmark of a way into the ledger that brings fewer events a second than 15,000 or ten times what
// inserts one by one do on the same server, whichever is lower.
func FastEnough(b *testing.B, db Database, eventsPerSecond float64) {
	b.Helper()
	single := rowByRow(b, db)
	bar := min(15_000, 10*single)
	b.ReportMetric(eventsPerSecond, "events/s")
	b.ReportMetric(single, "row-by-row/s")
	b.ReportMetric(bar, "required/s")
	if eventsPerSecond < bar {
		b.Errorf("%.0f events/s, at least %.0f required", eventsPerSecond, bar)
	}
}

// rowByRow inserts rows about as long as events, each in a transaction, for a second.
func rowByRow(b *testing.B, db Database) float64 {
	b.Helper()
	conn, err := pgx.Connect(b.Context(), db.Server.SocketURL(lab.Superuser, db.Name))
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = conn.Close(b.Context()) }()
	if _, err := conn.Exec(b.Context(), `CREATE TABLE row_by_row (lot text, epoch bigint, seq bigint, event_at timestamptz, line text, PRIMARY KEY (lot, epoch, seq))`); err != nil {
		b.Fatal(err)
	}
	const line = "user-0000\th\t1\tkey-user-0000\t1/3600000\t1796040000000\ttest\t"
	began, rows := time.Now(), 0
	for ; time.Since(began) < time.Second; rows++ {
		if _, err := conn.Exec(b.Context(), `INSERT INTO row_by_row VALUES ($1, 1, $2, now(), $3)`, "lot-1", rows, line); err != nil {
			b.Fatal(err)
		}
	}
	return float64(rows) / time.Since(began).Seconds()
}

// Pace watches a count until it reaches a target and returns how much it grew a second, between two steps of it: events are
// recorded in batches.
func Pace(b *testing.B, target int64, count func() int64) float64 {
	b.Helper()
	start := count()
	from, began := start, time.Now()
	deadline := time.Now().Add(5 * time.Minute)
	for is := start; is < target; is = count() {
		if is > start && from == start {
			from, began = is, time.Now()
		}
		if time.Now().After(deadline) {
			b.Fatalf("it stays at %d of %d", is, target)
		}
		time.Sleep(5 * time.Millisecond)
	}
	if target-from < 5000 {
		b.Fatalf("%d events are too few to measure", target-from)
	}
	return float64(target-from) / time.Since(began).Seconds()
}

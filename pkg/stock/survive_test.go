package stock

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/testkit"
)

var surviveRuns = flag.Int("survive-runs", 0, "sell-outs for each level of durability that are cut by a power failure (0: a few)")

// survival is what became of the holds that were acknowledged at a level.
type survival struct{ runs, acknowledged, lost int }

// TestAcknowledgedHoldsSurviveAPowerFailure cuts sell-outs at random moments: the primary ends, and all that was not
// synced to its disk is gone. With replicas=1 its replica takes over, else it starts again with what is left.
func TestAcknowledgedHoldsSurviveAPowerFailure(t *testing.T) {
	testkit.Long(t)
	runs := 4
	if *surviveRuns > 0 {
		runs = *surviveRuns
	}
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "LEVEL\tAPPENDFSYNC\tRUNS\tACKNOWLEDGED\tLOST")
	for _, c := range []struct {
		level, fsync string
		loses        bool
		waits        bool // for the disk, with WAITAOF
	}{
		{"memory", "everysec", true, false},
		{"disk", "always", false, false},
		{"disk", "everysec", false, true},
		{"replicas=1", "everysec", false, false},
	} {
		var sum survival
		o := lab.RedisOptions{Fsync: c.fsync, Under: testkit.Faulty(t)}
		if c.waits {
			if o.Least = [2]int{7, 2}; !lab.HasRedis(t.Context(), 7, 2) {
				t.Log("WAITAOF is not tested against a power failure: no server that has it is installed")
				continue
			}
			if err := openStock(t, testkit.Redis(t, o).URL(), durable(c.level)).CheckDurability(t.Context()); err != nil {
				t.Logf("WAITAOF is not tested against a power failure: %v", err)
				continue
			}
		}
		for run := range runs {
			t.Run(fmt.Sprintf("%s %s/%d", c.level, c.fsync, run), func(t *testing.T) {
				acknowledged, lost := cutSellOut(t, c.level, o)
				sum.acknowledged, sum.lost = sum.acknowledged+acknowledged, sum.lost+lost
			})
			sum.runs++
		}
		_, _ = fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%d\n", c.level, c.fsync, sum.runs, sum.acknowledged, sum.lost)
		if c.loses != (sum.lost > 0) {
			t.Errorf("%s, appendfsync %s: %d of %d acknowledged holds are lost", c.level, c.fsync, sum.lost, sum.acknowledged)
		}
	}
	_ = table.Flush()
}

// cutSellOut sells a lot out, ends the primary on the way, and counts the holds that were acknowledged and those of them
// that the server which comes after it does not know.
func cutSellOut(t *testing.T, level string, o lab.RedisOptions) (acknowledged, lost int) {
	const stock, callers = 2000, 256 // of whom many share a wait of up to a second
	replicas := 0
	if strings.HasPrefix(level, "replicas=") {
		replicas = 1
	}
	primary, followers := testkit.Replicated(t, replicas, o)
	s := openStock(t, primary.URL(), durable(level))
	lot := newLot(t, s, drop.Definition{Lot: "truffle", Stock: stock})

	var mu sync.Mutex
	held := make(map[string]drop.ReservationID)
	due := make(chan struct{})
	moment := 1 + rand.IntN(stock)
	note := func(id drop.ReservationID) {
		mu.Lock()
		defer mu.Unlock()
		held[id.Attempt] = id
		if len(held) == moment {
			close(due)
		}
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		inParallel(callers, func(caller int) {
			for i := 0; ; i++ {
				user := strconv.Itoa(caller) + "-" + strconv.Itoa(i)
				out, err := s.Reserve(t.Context(), drop.ReserveRequest{Lot: lot, User: user, Key: "k", Qty: 1})
				if err != nil {
					if !fault.Is(err, fault.SoldOut) && !fault.Is(err, fault.Unavailable) && !fault.Is(err, fault.OutcomeUnknown) {
						t.Errorf("user %s: %v", user, err)
					}
					return
				}
				note(out.Reservation.ID)
			}
		})
	}()
	select {
	case <-due:
	case <-ended:
		t.Fatalf("the sale ended after %d of %d holds", len(held), moment)
	}
	testkit.LosePower(t, primary)
	<-ended

	survivor := primary
	if replicas > 0 {
		survivor = followers[0]
		if err := survivor.Promote(t.Context()); err != nil {
			t.Fatal(err)
		}
	} else if err := primary.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return len(held), countLost(t, openStock(t, survivor.URL()), lot, held)
}

// countLost returns how many of the holds the server does not know.
func countLost(t *testing.T, s *Stock, lot drop.LotID, held map[string]drop.ReservationID) (lost int) {
	t.Helper()
	var attempts []string
	for attempt := range held {
		attempts = append(attempts, attempt)
	}
	known, err := s.RecordsOf(t.Context(), lot, attempts)
	if err != nil {
		t.Fatal(err)
	}
	for attempt, id := range held {
		if r, ok := known[attempt]; !ok || r.ID != id || r.State != drop.Held {
			lost++
		}
	}
	return lost
}

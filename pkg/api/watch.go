package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/dropctl/dropctl/pkg/client"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

const (
	lookEvery  = 200 * time.Millisecond // at the lots that somebody watches
	lookLimit  = 2 * time.Second
	streamTime = 5 * time.Second // of one write to a stream: whoever does not read that long is dropped
	keyCheck   = time.Second     // how often a stream looks whether its caller may still watch
)

var typeEvents = []string{"text/event-stream"}

// watchLot streams a lot's availability as server-sent events: what it is at first, then each change, many within a
// moment as one.
func (a *API) watchLot(w http.ResponseWriter, r *http.Request) error {
	lot, err := lotOf(callOf(r.Context()), r)
	if err != nil {
		return err
	}
	if r.Method == http.MethodHead { // nobody would read a stream
		_, err := a.engine.Lot(r.Context(), lot)
		w.Header()["Content-Type"] = typeEvents
		return a.aboutLot(r.Context(), lot, err)
	}
	news, err := a.streams.join(lot) // before the look, so that no change falls between the two
	if err != nil {
		return err
	}
	defer a.streams.part(lot, news)
	state, err := a.engine.Lot(r.Context(), lot)
	if err != nil {
		return a.aboutLot(r.Context(), lot, err)
	}
	a.metrics.Streams.Inc()
	a.metrics.InFlight.Dec()
	defer func() { a.metrics.Streams.Dec(); a.metrics.InFlight.Inc() }()
	s := stream{w: w, control: http.NewResponseController(w), told: r.Header.Get("Last-Event-ID")}
	if s.open(viewAvailability(state)) != nil {
		return nil // the caller is gone
	}
	a.follow(callOf(r.Context()), &s, news)
	s.close()
	return nil
}

// follow passes news on until the caller goes, does not read any more or may not watch any more, or the server stops.
func (a *API) follow(c *call, s *stream, news chan client.Availability) {
	beat, check := time.NewTicker(a.opt.Heartbeat), time.NewTicker(keyCheck)
	defer beat.Stop()
	defer check.Stop()
	for err := error(nil); err == nil; {
		select {
		case <-c.gone:
			return
		case <-a.closing:
			return
		case <-check.C:
			if !a.access.counts(c.key) {
				return
			}
		case v := <-news:
			err = s.tell(v)
		case <-beat.C:
			err = s.write(": still here\n\n")
		}
	}
}

// stream is one caller who watches a lot.
type stream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	told    string // id of the event that the caller has
}

// open begins the stream. The server's limits for ordinary requests end here: reading goes on as long as the caller is
// there, which is how its going away is noticed, and each write has a limit of its own.
func (s *stream) open(now client.Availability) error {
	if err := s.control.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	header := s.w.Header()
	header["Content-Type"] = typeEvents
	header["X-Accel-Buffering"] = []string{"no"} // a proxy that collects would hold news back
	s.w.WriteHeader(http.StatusOK)
	if err := s.write("retry: 2000\n\n"); err != nil {
		return err
	}
	return s.tell(now)
}

// tell sends an event unless the caller has it.
func (s *stream) tell(v client.Availability) error {
	id := eventID(v)
	if id == s.told {
		return nil
	}
	s.told = id
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return s.write("event: availability\nid: " + id + "\ndata: " + string(data) + "\n\n")
}

func (s *stream) write(text string) error {
	if err := s.control.SetWriteDeadline(time.Now().Add(streamTime)); err != nil {
		return err
	}
	if _, err := s.w.Write([]byte(text)); err != nil {
		return err
	}
	if err := s.control.Flush(); err != nil {
		return err
	}
	return s.control.SetWriteDeadline(time.Time{}) // HTTP/2 would end the stream then, written to or not
}

// close lets the end of the stream be written, in the time of any other write.
func (s *stream) close() { _ = s.control.SetWriteDeadline(time.Now().Add(streamTime)) } // if it fails the caller is gone

// eventID names what a caller knows of a lot: the place in its history, and what changes without an event: units whose
// hold has run out, and whether it sells.
func eventID(v client.Availability) string {
	return fmt.Sprintf("%d-%d-%d-%t", v.Epoch, v.Seq, v.Available, v.Selling)
}

func viewAvailability(s drop.LotState) client.Availability {
	return client.Availability{Lot: string(s.Lot), Status: string(s.Status), Selling: sells(s), Available: s.Available + s.Due,
		Held: s.Held - s.Due, Sold: s.Sold, Capacity: s.Capacity, Seq: s.Seq, Epoch: s.Epoch}
}

// streams looks at all lots that somebody watches, with one question however many watch, and tells each what is new.
type streams struct {
	stock Stock
	limit int

	mu      sync.Mutex
	looking bool
	count   int
	lots    map[drop.LotID]map[chan client.Availability]bool
	told    map[drop.LotID]client.Availability // to all who watch
}

func newStreams(s Stock, limit int) *streams {
	return &streams{stock: s, limit: limit, lots: map[drop.LotID]map[chan client.Availability]bool{}, told: map[drop.LotID]client.Availability{}}
}

// join lets somebody watch a lot. The channel holds the newest look at it; one that was not taken in time is replaced.
func (s *streams) join(lot drop.LotID) (chan client.Availability, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.count >= s.limit {
		return nil, fault.New(fault.Overloaded, "%d streams are open already", s.limit).With("retry_after_seconds", 5)
	}
	news := make(chan client.Availability, 1)
	if s.lots[lot] == nil {
		s.lots[lot] = map[chan client.Availability]bool{}
	}
	s.lots[lot][news] = true
	delete(s.told, lot) // not to this one yet
	s.count++
	if !s.looking {
		s.looking = true
		go s.look()
	}
	return news, nil
}

func (s *streams) part(lot drop.LotID, news chan client.Availability) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count--
	delete(s.lots[lot], news)
	if len(s.lots[lot]) == 0 {
		delete(s.lots, lot)
		delete(s.told, lot)
	}
}

// look looks again and again, until nobody watches. Of lots whose Redis does not answer there is no news.
func (s *streams) look() {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for range tick.C {
		lots, any := s.watched()
		if !any {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), lookLimit)
		states, _ := s.stock.LotStates(ctx, lots) // of a server that does not answer it has no lots
		cancel()
		s.spread(states)
	}
}

// watched lists the lots that somebody watches; false, and nobody looks any more, if there are none.
func (s *streams) watched() ([]drop.LotID, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.count == 0 {
		s.looking = false
		return nil, false
	}
	lots := make([]drop.LotID, 0, len(s.lots))
	for lot := range s.lots {
		lots = append(lots, lot)
	}
	return lots, true
}

func (s *streams) spread(states map[drop.LotID]drop.LotState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for lot, state := range states {
		if state.Damaged != "" {
			continue
		}
		v := viewAvailability(state)
		if s.told[lot] == v || s.lots[lot] == nil {
			continue
		}
		s.told[lot] = v
		for news := range s.lots[lot] {
			select {
			case <-news: // what it has not taken yet is old
			default:
			}
			news <- v
		}
	}
}

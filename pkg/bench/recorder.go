package bench

import (
	"runtime"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/dropctl/dropctl/pkg/fault"
)

// recorder takes notes of answers. It is a set of notebooks, so that users seldom wait for one another to write.
type recorder struct{ books []*notebook }

// notebook is shared by some of the users.
type notebook struct {
	mu    sync.Mutex
	page  *page
	spare *page // empty, to be written on next
}

// page is what was noted since the page was turned.
type page struct {
	accepted, refused *hdrhistogram.Histogram // µs
	lateness          *hdrhistogram.Histogram // µs from when an operation was due until it was started
	errors            map[fault.Code]int64
	examples          map[fault.Code]error // the first of each
}

func newPage() *page {
	return &page{newHistogram(), newHistogram(), newHistogram(), map[fault.Code]int64{}, map[fault.Code]error{}}
}

func newRecorder() *recorder {
	r := &recorder{}
	for range 2 * runtime.GOMAXPROCS(0) {
		r.books = append(r.books, &notebook{page: newPage(), spare: newPage()})
	}
	return r
}

// of returns the notebook of a user.
func (r *recorder) of(user int) *notebook { return r.books[user%len(r.books)] }

// answer notes how an operation ended, and how long it took.
func (b *notebook) answer(took time.Duration, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case err == nil:
		record(b.page.accepted, took)
	case fault.ExitOf(err) == fault.ExitRefused:
		record(b.page.refused, took)
	default:
		code := fault.CodeOf(err)
		if b.page.errors[code]++; b.page.examples[code] == nil {
			b.page.examples[code] = err
		}
	}
}

// late notes how late an operation was started.
func (b *notebook) late(by time.Duration) {
	b.mu.Lock()
	record(b.page.lateness, by)
	b.mu.Unlock()
}

func record(h *hdrhistogram.Histogram, d time.Duration) {
	_ = h.RecordValue(max(0, min(d.Microseconds(), h.HighestTrackableValue()))) // which it always takes
}

// turn returns what was noted since the last call.
func (r *recorder) turn() *page {
	all := newPage()
	for _, b := range r.books {
		b.mu.Lock()
		written := b.page
		b.page, b.spare = b.spare, nil
		b.mu.Unlock()
		all.add(written)
		written.reset()
		b.spare = written
	}
	return all
}

func (p *page) add(q *page) {
	p.accepted.Merge(q.accepted)
	p.refused.Merge(q.refused)
	p.lateness.Merge(q.lateness)
	for code, n := range q.errors {
		p.errors[code] += n
	}
	for code, err := range q.examples {
		if p.examples[code] == nil {
			p.examples[code] = err
		}
	}
}

func (p *page) reset() {
	p.accepted.Reset()
	p.refused.Reset()
	p.lateness.Reset()
	clear(p.errors)
	clear(p.examples)
}

func (p *page) failed() (n int64) {
	for _, each := range p.errors {
		n += each
	}
	return n
}

// answers returns how many operations were accepted or refused.
func (p *page) answers() int64 { return p.accepted.TotalCount() + p.refused.TotalCount() }

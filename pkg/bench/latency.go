package bench

import (
	"encoding/json"
	"fmt"
	"reflect"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Answers says how many answers of a kind there were, and how long they took. The times are nil if there were none.
type Answers struct {
	Count int64 `json:"count"`
	P50   *Span `json:"p50_seconds"`
	P99   *Span `json:"p99_seconds"`
	Max   *Span `json:"max_seconds"`
}

// Latency is the same of a whole run, with the histogram behind it. In an open loop a time runs from the moment at which the
// operation was due.
type Latency struct {
	Count     int64      `json:"count"`
	P50       *Span      `json:"p50_seconds"`
	P90       *Span      `json:"p90_seconds"`
	P99       *Span      `json:"p99_seconds"`
	P999      *Span      `json:"p999_seconds"`
	Max       *Span      `json:"max_seconds"`
	Histogram *Histogram `json:"histogram"` // nil if there was nothing to count
}

// Histogram counts times, in microseconds. In JSON it is a text, HdrHistogram V2 compressed in base64, which other tools read
// too.
type Histogram struct{ *hdrhistogram.Histogram }

// The histograms of results are all alike, so that each can be merged with each.
const (
	longest = 10 * time.Minute // longer ones count as that
	digits  = 3
)

// newHistogram returns an empty histogram of microseconds.
func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, longest.Microseconds(), digits)
}

// AnswersOf sums a histogram of microseconds up.
func AnswersOf(h *hdrhistogram.Histogram) Answers {
	l := LatencyOf(h)
	return Answers{l.Count, l.P50, l.P99, l.Max}
}

// LatencyOf sums a histogram of microseconds up and keeps it: whoever goes on writing in it has to hand over a copy.
func LatencyOf(h *hdrhistogram.Histogram) Latency {
	if h == nil || h.TotalCount() == 0 {
		return Latency{}
	}
	at := func(percentile float64) *Span { return new(spanAt(h, percentile)) }
	return Latency{h.TotalCount(), at(50), at(90), at(99), at(99.9), at(100), &Histogram{h}}
}

func spanAt(h *hdrhistogram.Histogram, percentile float64) Span {
	return Span(time.Duration(h.ValueAtPercentile(percentile)) * time.Microsecond)
}

// At returns the time within which this share of the answers came, in percent; false if there were none.
func (l Latency) At(percentile float64) (time.Duration, bool) {
	if l.Histogram == nil {
		return 0, false
	}
	return time.Duration(spanAt(l.Histogram.Histogram, percentile)), true
}

// Merge returns the latency of both. Neither changes.
func (l Latency) Merge(other Latency) Latency {
	sum := newHistogram()
	for _, each := range []Latency{l, other} {
		if each.Histogram != nil {
			sum.Merge(each.Histogram.Histogram)
		}
	}
	return LatencyOf(sum)
}

// Cell writes it for people.
func (a Answers) Cell() string {
	if a.P50 == nil {
		return fmt.Sprint(a.Count)
	}
	return fmt.Sprintf("%d: p50 %s, p99 %s, max %s", a.Count, a.P50.Cell(), a.P99.Cell(), a.Max.Cell())
}

// Cell writes it for people.
func (l Latency) Cell() string {
	if l.P50 == nil {
		return fmt.Sprint(l.Count)
	}
	return fmt.Sprintf("%d: p50 %s, p90 %s, p99 %s, p99.9 %s, max %s", l.Count, l.P50.Cell(), l.P90.Cell(), l.P99.Cell(), l.P999.Cell(), l.Max.Cell())
}

// MarshalText encodes the histogram.
func (h Histogram) MarshalText() ([]byte, error) {
	return h.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
}

// maxEncoded bounds what is decoded: a histogram of which every counter is used needs less.
const maxEncoded = 1 << 20

// UnmarshalJSON decodes a histogram and refuses one that could not be merged with the others.
func (h *Histogram) UnmarshalJSON(text []byte) error {
	var encoded string
	if err := json.Unmarshal(text, &encoded); err != nil {
		return err
	}
	if len(encoded) > maxEncoded {
		return wrongValue[Histogram]("too long a text")
	}
	decoded, err := hdrhistogram.Decode([]byte(encoded))
	if err != nil {
		return wrongValue[Histogram]("a text that is no HdrHistogram")
	}
	if decoded.LowestTrackableValue() != 1 || decoded.HighestTrackableValue() != longest.Microseconds() || decoded.SignificantFigures() != digits {
		return wrongValue[Histogram]("a histogram of another kind")
	}
	h.Histogram = decoded
	return nil
}

// wrongValue is the error of a decoder that expected a T: encoding/json adds to it where that was.
func wrongValue[T any](what string) error {
	return &json.UnmarshalTypeError{Value: what, Type: reflect.TypeFor[T]()}
}

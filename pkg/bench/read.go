package bench

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/dropctl/dropctl/pkg/fault"
)

// MaxFile bounds what is read of a file of results: a run of a day is far smaller.
const MaxFile = 64 << 20

// ReadResults reads results as -o json and -o jsonl print them: one document, several after one another, or lists of them.
// The error, of code Invalid, names the file as it is called here, and the field that is wrong.
func ReadResults(file string, r io.Reader) ([]Result, error) {
	text, err := io.ReadAll(io.LimitReader(r, MaxFile+1))
	if err != nil {
		return nil, fault.Wrap(fault.Invalid, err, "%s could not be read", file)
	}
	if len(text) > MaxFile {
		return nil, fault.New(fault.Invalid, "%s is larger than %d MB", file, MaxFile>>20).WithHint("results are smaller; is it another file?")
	}
	var results []Result
	for dec := json.NewDecoder(bytes.NewReader(text)); ; {
		var document json.RawMessage
		err := dec.Decode(&document)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, noResult(file, fmt.Sprintf("line %d is no JSON", lineOf(text, err)))
		}
		found, err := readDocument(file, document)
		if err != nil {
			return nil, err
		}
		results = append(results, found...)
	}
	if len(results) == 0 {
		return nil, noResult(file, "it is empty")
	}
	return results, nil
}

// lineOf returns the line on which a decoder stopped: the last one, if it wanted more.
func lineOf(text []byte, err error) int {
	if wrong, ok := errors.AsType[*json.SyntaxError](err); ok {
		text = text[:min(wrong.Offset, int64(len(text)))]
	}
	return 1 + bytes.Count(text, []byte("\n"))
}

func noResult(file, why string) *fault.Error {
	return fault.New(fault.Invalid, "%s is no result of a measurement: %s", file, why).
		WithHint("write one with: dropctl bench engine -o json > run.json")
}

func readDocument(file string, document json.RawMessage) ([]Result, error) {
	list := []json.RawMessage{document}
	if document[0] == '[' {
		if err := json.Unmarshal(document, &list); err != nil {
			return nil, noResult(file, "a list in it cannot be read")
		}
	}
	var results []Result
	for _, element := range list {
		r, err := readResult(file, element)
		if err != nil {
			return nil, err
		}
		results = append(results, r)
	}
	return results, nil
}

func readResult(file string, document json.RawMessage) (Result, error) {
	var format struct {
		Version *int `json:"version"`
	}
	if err := json.Unmarshal(document, &format); err != nil || format.Version == nil {
		return Result{}, noResult(file, "version: it has none").WithField("version")
	}
	if *format.Version != ResultVersion {
		return Result{}, fault.New(fault.Invalid, "%s is of version %d; this program reads version %d", file, *format.Version, ResultVersion).
			WithField("version").WithHint("read it with the dropctl that wrote it, or measure again")
	}
	var r Result
	if err := json.Unmarshal(document, &r); err != nil {
		wrong, ok := errors.AsType[*json.UnmarshalTypeError](err)
		if !ok {
			return Result{}, noResult(file, err.Error())
		}
		return Result{}, wrongField(file, wrong.Field, "it is "+wrong.Value)
	}
	if field, why := r.wrong(); why != "" {
		return Result{}, wrongField(file, field, why)
	}
	// What is told of a histogram is told by the histogram.
	for _, l := range []*Latency{&r.Accepted, &r.Refused, &r.Lateness} {
		if l.Histogram != nil {
			*l = LatencyOf(l.Histogram.Histogram)
		}
	}
	return r, nil
}

func wrongField(file, field, why string) error {
	return fault.New(fault.Invalid, "%s: %s: %s", file, field, why).WithField(field).WithHint("use the file as dropctl bench wrote it")
}

// wrong looks for what no run can have found, and returns the field; why is "" if there is nothing.
func (r Result) wrong() (field, why string) {
	switch {
	case r.Target == "":
		return "target", "it is empty"
	case r.Loop != OpenLoop && r.Loop != ClosedLoop:
		return "loop", fmt.Sprintf("%.20q is neither %s nor %s", r.Loop, OpenLoop, ClosedLoop)
	case r.Offered < 0:
		return "offered_per_second", "it is negative"
	case r.Achieved < 0:
		return "achieved_per_second", "it is negative"
	case r.AcceptedRate < 0:
		return "accepted_per_second", "it is negative"
	case noCount(r.Dropped):
		return "dropped", fmt.Sprintf("a count of %d cannot be", r.Dropped)
	case r.Users < 0:
		return "users", "it is negative"
	case r.Audit.Verdict != AuditOK && r.Audit.Verdict != AuditBroken && r.Audit.Verdict != AuditNone:
		return "audit.verdict", fmt.Sprintf("%.20q is none of %s, %s, %s", r.Audit.Verdict, AuditOK, AuditBroken, AuditNone)
	case r.Accepted.wrong() != "":
		return "accepted", r.Accepted.wrong()
	case r.Refused.wrong() != "":
		return "refused", r.Refused.wrong()
	case r.Lateness.wrong() != "":
		return "lateness", r.Lateness.wrong()
	}
	for code, n := range r.Errors {
		if noCount(n) {
			return fmt.Sprintf("errors.%.40s", code), fmt.Sprintf("a count of %d cannot be", n)
		}
	}
	return r.wrongSecond()
}

// noCount says of a number that nothing can have happened so often. The bound is far below what overflows when results are
// added up.
func noCount(n int64) bool { return n < 0 || n > 1<<50 }

func (l Latency) wrong() string {
	switch {
	case noCount(l.Count):
		return fmt.Sprintf("a count of %d cannot be", l.Count)
	case l.Count == 0 && l.Histogram != nil && l.Histogram.TotalCount() > 0, l.Count > 0 && l.Histogram == nil,
		l.Histogram != nil && l.Histogram.TotalCount() != l.Count:
		return "its histogram and its count differ"
	}
	return ""
}

// wrongSecond checks that seconds follow one another.
func (r Result) wrongSecond() (field, why string) {
	last := 0
	for i, s := range r.Seconds {
		field := fmt.Sprintf("seconds[%d]", i)
		switch {
		case s.Second <= last:
			return field + ".second", "it does not follow the one before"
		case noCount(s.Offered) || noCount(s.Dropped) || noCount(s.Accepted.Count) || noCount(s.Refused.Count) || noCount(s.Errors):
			return field, "a count is negative, or cannot be"
		}
		last = s.Second
	}
	return "", ""
}

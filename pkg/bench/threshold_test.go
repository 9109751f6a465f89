package bench

import (
	"strings"
	"testing"

	"github.com/dropctl/dropctl/pkg/fault"
)

func TestLimitsJudge(t *testing.T) {
	r := sample() // accepts from 1 to 11 ms, refusals from 0.1 to 1.1 ms; 800 of 1,000 a second; of 2,005 offered 3 dropped, 2 failed
	r.Audit = Audit{Verdict: AuditOK}
	for expression, want := range map[string]struct {
		ok    bool
		shown string
	}{
		"accept_p99>10ms":       {false, "10.9ms"},
		"accept_p99>11ms":       {true, "10.9ms"},
		"accept_p50 <= 10ms":    {false, "5.99ms"},
		"refuse_p99>0.5ms":      {false, "1.09ms"},
		"refuse_p99.9>2s":       {false, "not measured"}, // 0.15 % were dropped, who would have waited longer
		"accept_max>2s":         {false, "not measured"},
		"accept_p90>0.02s":      {true, "9.99ms"},
		"achieved<900":          {false, "800"},
		"achieved<700/s":        {true, "800/s"},
		"achieved<99%":          {false, "80%"},
		"dropped>0":             {false, "3"},
		"dropped>1%":            {true, "0.15%"},
		"errors>=2":             {false, "2"},
		"errors>2":              {true, "2"},
		"oversold>0":            {true, "0"},
		"redis_cpu>9µs":         {false, "9.4µs"},
		"redis_cpu>9400ns":      {true, "9.4µs"},
		"redis_commands>0.5":    {true, "0.25"},
		"postgres_cpu>1s":       {false, "not measured"},
		"ACCEPTED<1000000":      {false, "1000"},
		"  leaked   >=   1    ": {true, "0"},
	} {
		l, err := ParseLimit(expression)
		if err != nil {
			t.Errorf("%s: %v", expression, err)
			continue
		}
		if got := l.Judge(r); got.OK != want.ok || got.Shown != want.shown {
			t.Errorf("%s: %+v", expression, got)
		}
	}
}

// TestWhatWasNotMeasuredIsNotOK: a run without a single accept must not pass as a quick one, nor one that nobody audited as safe.
func TestWhatWasNotMeasuredIsNotOK(t *testing.T) {
	r := Result{Audit: Audit{Verdict: AuditNone}}
	limits, err := ParseLimits([]string{"accept_p99>10ms", "oversold>0", "errors>1%", "achieved<99%"})
	if err != nil {
		t.Fatal(err)
	}
	r.Judge(limits)
	for _, th := range r.Thresholds {
		if th.OK || th.Measured != nil {
			t.Errorf("%+v", th)
		}
	}
	if err := r.Err(); fault.ExitOf(err) != fault.ExitFinding || !strings.Contains(err.Error(), "4 of 4") || !strings.Contains(err.Error(), "accept_p99>10ms (not measured)") {
		t.Error(err)
	}
}

// A closed loop offers what it achieves: held against that, any run would be as good as it can be.
func TestAClosedLoopOffersNothingToBeAchieved(t *testing.T) {
	r := sample()
	r.Loop, r.Offered, r.Dropped = ClosedLoop, r.Achieved, 0
	for expression, want := range map[string]string{"achieved<99%": "not measured", "achieved<700/s": "800/s", "refuse_p99.9>2s": "1.1ms"} {
		l, err := ParseLimit(expression)
		if err != nil {
			t.Fatal(err)
		}
		if got := l.Judge(r); got.Shown != want || got.OK != (want != "not measured") {
			t.Errorf("%s: %+v", expression, got)
		}
	}
}

func TestABrokenPromiseIsWorseThanALimit(t *testing.T) {
	r := sample()
	if err := r.Err(); !fault.Is(err, fault.Broken) || !strings.Contains(err.Error(), "a unit too many") {
		t.Error(err)
	}
	r.Audit, r.Thresholds = Audit{Verdict: AuditOK}, nil
	if err := r.Err(); err != nil {
		t.Error(err)
	}
}

// A run without a single answer has measured nothing: it ends as what most of its operations met.
func TestARunThatWasNeverAnsweredIsAnError(t *testing.T) {
	lost := fault.New(fault.Unavailable, "the server cannot be reached").WithHint("start it")
	r := Result{Audit: Audit{Verdict: AuditOK}, Errors: map[fault.Code]int64{fault.OutcomeUnknown: 2, fault.Unavailable: 40}, Examples: map[fault.Code]error{fault.Unavailable: lost}}
	err := r.Err()
	if !fault.Is(err, fault.Unavailable) || fault.ExitOf(err) != fault.ExitUnavailable || fault.HintOf(err) != "start it" {
		t.Errorf("%v (hint: %s)", err, fault.HintOf(err))
	}
	for _, want := range []string{"42", "40 are unavailable", "cannot be reached"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
	r.Judge([]Limit{{name: "errors", op: ">", bound: 1}})
	if err := r.Err(); !fault.Is(err, fault.ThresholdMissed) {
		t.Errorf("with a limit that is missed, too: %v", err)
	}
	r.Thresholds, r.Interrupted = nil, true
	if err := r.Err(); err != nil {
		t.Errorf("interrupted: %v", err)
	}
	r.Interrupted, r.Refused.Count = false, 1
	if err := r.Err(); err != nil {
		t.Errorf("with one answer: %v", err)
	}
}

func TestLimitsThatMeanNothingAreRefused(t *testing.T) {
	for expression, hint := range map[string]string{
		"": "--fail-if 'accept_p99>10ms'", "accept_p99": "--fail-if", "accept_p99>": "--fail-if", "accept_p99=10ms": "--fail-if", "accept_p99>-1ms": "--fail-if",
		"accept_p99>1e9ms": "--fail-if", "accept_p99>NaN": "--fail-if", "accept_p99>10ms>5ms": "--fail-if", "accept_p99>10h": "--fail-if",
		"accept_p99>10": "ns, µs, ms or s", "accept_p99>10%": "ns, µs, ms or s", "accept_99>10ms": "accept_p9", "bananas>1": "accept_max",
		"oversold>1ms": "a number alone", "oversold>1%": "a number alone", "dropped>1/s": "a number alone",
	} {
		_, err := ParseLimit(expression)
		e := fault.As(err)
		if e == nil || e.Code != fault.Usage || e.Field != "fail-if" || !strings.Contains(fault.HintOf(err), hint) {
			t.Errorf("%q: %v (%s)", expression, err, fault.HintOf(err))
		}
	}
	if _, err := ParseLimits([]string{"errors>0", "nothing"}); !fault.Is(err, fault.Usage) {
		t.Error(err)
	}
}

func FuzzParseLimit(f *testing.F) {
	for _, seed := range []string{"accept_p99>10ms", "refuse_p99.9<=0.5µs", "achieved<99%", "errors>=1", "x>1", "achieved<1/s", ">", "accept_p99>999999999999999s"} {
		f.Add(seed)
	}
	r := sample()
	f.Fuzz(func(t *testing.T, text string) {
		l, err := ParseLimit(text)
		if err != nil {
			if !fault.Is(err, fault.Usage) || fault.HintOf(err) == "" {
				t.Fatal(err)
			}
			return
		}
		again, err := ParseLimit(l.String())
		if err != nil || again != l {
			t.Fatalf("%q was understood as %+v, and that as %+v (%v)", text, l, again, err)
		}
		// A limit and its opposite never both hold.
		opposite := map[string]string{"<": ">=", ">=": "<", ">": "<=", "<=": ">"}
		other := l
		other.op = opposite[l.op]
		if a, b := l.Judge(r), other.Judge(r); a.Measured != nil && a.OK == b.OK {
			t.Fatalf("%+v and %+v", a, b)
		}
	})
}

package cli

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/bench"
	"github.com/dropctl/dropctl/pkg/bench/compare"
)

// What is printed as JSON is drawn as well, now and by bench report later. Times of microseconds stay what they are.
func TestAComparisonIsDrawnAsItsJSONIs(t *testing.T) {
	measured := compare.Report{Models: []compare.Row{
		{Model: "redis-lock", PerSecond: 9000, Low: 8000, High: 9500, P50: bench.Span(310 * time.Microsecond), P99: bench.Span(2 * time.Millisecond), LockWait: bench.Span(7 * time.Microsecond), CPU: new(bench.Span(42 * time.Microsecond)), Leaked: new(int64(0))},
		{Model: "dropctl", PerSecond: 90_000, Low: 80_000, High: 99_000, P50: bench.Span(time.Millisecond), P99: bench.Span(3 * time.Millisecond)},
	}}
	text, err := json.Marshal(measured)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"p50_seconds":0.00031`, `"lock_wait_per_success_seconds":0.000007`, `"cpu_per_success_seconds":0.000042`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%s is missing in %s", want, text)
		}
	}
	again := drawingOf(measured)
	again.Models = nil
	if err := again.Read("models.json", bytes.NewReader(text)); err != nil {
		t.Fatal(err)
	}
	var now, later bytes.Buffer
	if err := drawingOf(measured).Draw(&now); err != nil {
		t.Fatal(err)
	}
	if err := again.Draw(&later); err != nil {
		t.Fatal(err)
	}
	if now.String() != later.String() || !strings.Contains(now.String(), "redis-lock") {
		t.Errorf("it is drawn as %s\nand later as %s", now.String(), later.String())
	}
}

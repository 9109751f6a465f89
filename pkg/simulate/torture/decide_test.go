package torture

import (
	"reflect"
	"testing"

	"github.com/dropctl/dropctl/pkg/lab"
)

func TestTheSameSeedMakesTheSameDecisions(t *testing.T) {
	differs, acts := 0, map[act]int{}
	for caller := range 4 {
		for number := range 500 {
			s := decide(7, caller, number)
			if s != decide(7, caller, number) {
				t.Fatalf("caller %d decides differently at step %d the second time", caller, number)
			}
			if s != decide(8, caller, number) {
				differs++
			}
			acts[s.act]++
		}
	}
	if differs < 1900 {
		t.Errorf("another seed makes only %d of 2000 decisions differently", differs)
	}
	if len(acts) != len(weights) {
		t.Errorf("only %v occur", acts)
	}
	faults := map[string]int{}
	for number := range 500 {
		f := disturb(7, number)
		if !reflect.DeepEqual(f, disturb(7, number)) {
			t.Fatalf("fault %d differs the second time", number)
		}
		faults[string(f.fault.Act)+" "+string(f.fault.Target)]++
		if again, err := lab.ParseFault(f.fault.String()); err != nil || again.Act != f.fault.Act {
			t.Errorf("%s cannot be read: %v", f.fault, err)
		}
	}
	if len(faults) != 12 {
		t.Errorf("only %v occur", faults)
	}
}

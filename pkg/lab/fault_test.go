package lab

import (
	"strings"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/fault"
)

func TestFaultsAreReadAsTheyAreWritten(t *testing.T) {
	for text, want := range map[string]Fault{
		"kill redis at 3s":                             {Act: KillAct, Target: RedisTarget, At: 3 * time.Second},
		"kill worker at 4s":                            {Act: KillAct, Target: WorkerTarget, At: 4 * time.Second},
		"restart redis at 0s":                          {Act: RestartAct, Target: RedisTarget},
		"restart postgres at 1m":                       {Act: RestartAct, Target: PostgresTarget, At: time.Minute},
		"pause postgres 5s at 2s":                      {Act: PauseAct, Target: PostgresTarget, For: 5 * time.Second, At: 2 * time.Second},
		" flush   redis at 500ms ":                     {Act: FlushAct, Target: RedisTarget, At: 500 * time.Millisecond},
		"drop 1% replies":                              {Act: DropAct, Target: RedisTarget, Share: 0.01},
		"drop 0.5% replies for 10s":                    {Act: DropAct, Target: RedisTarget, Share: 0.005, For: 10 * time.Second},
		"drop 100% replies from postgres for 1s at 2s": {Act: DropAct, Target: PostgresTarget, Share: 1, For: time.Second, At: 2 * time.Second},
		"delay replies 20ms from redis at 2s":          {Act: DelayAct, Target: RedisTarget, Delay: 20 * time.Millisecond, At: 2 * time.Second},
	} {
		got, err := ParseFault(text)
		if err != nil || got != want {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
		if again, err := ParseFault(got.String()); err != nil || again != got {
			t.Errorf("%q is written %q and read as %+v, %v", text, got, again, err)
		}
	}
}

func TestAWrongFaultSaysWhatWasExpectedWhere(t *testing.T) {
	for text, want := range map[string]string{
		"":                                   `at the end, expected kill, restart`,
		"kil redis at 3s":                    `at "kil", expected kill`,
		"kill":                               "at the end, expected redis, postgres, worker",
		"kill redis":                         "at the end, expected at",
		"kill redis at":                      "at the end, expected a time",
		"kill redis at 3":                    `at "3", expected a time`,
		"kill redis at -3s":                  `at "-3s", expected a time`,
		"kill redis at 25h":                  `at "25h", expected a time`,
		"kill redis at 3s twice":             `at "twice", expected nothing more`,
		"pause redis at 3s":                  `at "at", expected a time`,
		"flush postgres at 3s":               `at "postgres", expected redis`,
		"drop 0% replies":                    `at "0%", expected a share`,
		"drop NaN% replies":                  `at "NaN%", expected a share`,
		"drop 1 replies":                     `at "1", expected a share`,
		"drop 1% requests":                   `at "requests", expected replies`,
		"drop 1% replies from worker":        `at "worker", expected redis, postgres`,
		"drop 1% replies at 2s for 1s":       `at "for", expected nothing more`,
		"delay replies":                      "expected a time",
		"kill " + strings.Repeat("x", 10000): `..."`,
	} {
		_, err := ParseFault(text)
		if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), want) || len(err.Error()) > 400 {
			t.Errorf("%.40q: %v, want %s", text, err, want)
		}
	}
}

func TestFaultsOfTheSameRepliesMustNotOverlap(t *testing.T) {
	for texts, fine := range map[string]bool{
		"drop 1% replies; drop 2% replies at 3s":                    false,
		"drop 1% replies for 4s; drop 2% replies at 3s":             false,
		"drop 1% replies for 3s; drop 2% replies at 3s":             true,
		"drop 1% replies; drop 2% replies from postgres":            true,
		"drop 1% replies; delay replies 1ms":                        true,
		"kill redis at 1s; kill redis at 1s; pause redis 10s at 1s": true,
	} {
		var faults []Fault
		for text := range strings.SplitSeq(texts, ";") {
			f, err := ParseFault(text)
			if err != nil {
				t.Fatal(err)
			}
			faults = append(faults, f)
		}
		if err := CheckFaults(faults); (err == nil) != fine {
			t.Errorf("%s: %v", texts, err)
		}
	}
}

func FuzzParseFault(f *testing.F) {
	for _, text := range []string{"kill redis at 3s", "pause postgres 5s at 2s", "drop 1% replies from redis for 10s at 2s", "delay replies 20ms", "flush redis at 0s", "drop 1e-3% replies"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := ParseFault(text)
		if err != nil {
			if !fault.Is(err, fault.Invalid) {
				t.Fatalf("%v", err)
			}
			return
		}
		again, err := ParseFault(got.String())
		if err != nil || again.String() != got.String() {
			t.Fatalf("%q is written %q and read as %+v, %v", text, got, again, err)
		}
	})
}

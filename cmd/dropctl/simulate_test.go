package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/dropctl/dropctl/pkg/testkit"
)

const mishapScenario = `seed: 1
lots:
  - {lot: truffle, stock: 40, hold: 4s, max_hold: 10s, late: reclaim}
  - {lot: poster, stock: 1000, hold: 4s, max_hold: 10s}
gateway: {answers: 1ms..20ms, timeout: 1s, declined: 5%, silent: 1%, undecided: 5%, decides: 500ms..1s, refund_refused: 10%}
crowds:
  fan:
    users: 250
    arrive: {ramp: 3s}
    visits: 1..2
    wants: {truffle: 1, poster: 1}
    qty: {1..2: 1}
    patience: 20s
    insist: 3
    pause: 300ms
    think: 100ms..300ms
    ends: {pay: 80, give_back: 20}
    payment: {takes: 100ms}
    refund: 10%
    satisfied: 50%
`

// A rehearsal to which things happen, with a worker that is a process of its own, recovers by itself and keeps every promise.
func TestARehearsalSurvivesWhatIsDoneToIt(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	cmd := as("dropctl", "simulate", "-", "-o", "json", "--fault", "restart worker at 200ms", "--fault", "kill redis at 1s",
		"--fault", "drop 3% replies for 500ms at 2s", "--fault", "pause postgres 1s at 1s", "--fault", "kill redis at 9h")
	cmd.Stdin = strings.NewReader(mishapScenario)
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	if exit := exitOf(t, cmd.Run()); exit != 0 {
		t.Fatalf("exit %d: %s", exit, &problems)
	}
	var told struct {
		Verdict  string `json:"verdict"`
		Sold     int64  `json:"sold_units"`
		Payments struct {
			Paid     int64 `json:"paid_units"`
			Declined int64 `json:"charges_declined"`
			Refunds  int64 `json:"refunds_made"`
		}
		Faults []struct {
			Fault string `json:"fault"`
			Done  bool   `json:"done"`
			Error string `json:"error"`
		} `json:"faults"`
	}
	if err := json.Unmarshal(out.Bytes(), &told); err != nil {
		t.Fatal(err)
	}
	if told.Verdict != "ok" || told.Sold == 0 || len(told.Faults) != 5 {
		t.Errorf("%s", &out)
	}
	if p := told.Payments; p.Paid != told.Sold || p.Declined == 0 || p.Refunds == 0 {
		t.Errorf("%d units are sold, payments %+v", told.Sold, p)
	}
	for _, f := range told.Faults {
		if f.Done != (f.Fault != "kill redis at 9h0m0s") || f.Error != "" {
			t.Errorf("%+v", f)
		}
	}
}

// Redis is emptied in the middle of a sale, while PostgreSQL and the worker are down or slow, and the next worker has never seen
// it otherwise. Buyers lose what the ledger had not got; nothing else is broken: no unit is sold twice, and none is gone.
func TestARehearsalSurvivesALossOfRedis(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	cmd := as("dropctl", "simulate", "-", "-o", "json", "--fault", "delay replies 5ms for 500ms", "--fault", "delay replies 5ms from postgres",
		"--fault", "pause redis 200ms at 600ms", "--fault", "pause worker 500ms at 1s", "--fault", "kill postgres at 1500ms", "--fault", "flush redis at 1600ms", "--fault", "kill worker at 2s")
	cmd.Stdin = strings.NewReader(strings.Replace(mishapScenario, "patience: 20s", "patience: 3s", 1))
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	if exit := exitOf(t, cmd.Run()); exit != 0 {
		t.Fatalf("exit %d: %s\n%s", exit, &problems, &out)
	}
	var told struct {
		Verdict string   `json:"verdict"`
		Sold    int64    `json:"sold_units"`
		Ledger  int64    `json:"ledger_units"`
		Broken  []string `json:"broken"`
	}
	if err := json.Unmarshal(out.Bytes(), &told); err != nil {
		t.Fatal(err)
	}
	if told.Verdict != "ok" || told.Sold == 0 || told.Sold != told.Ledger || len(told.Broken) > 0 {
		t.Errorf("%s", &out)
	}
}

func TestFaultsAndTortureAreCheckedBeforeAnythingStarts(t *testing.T) {
	for want, args := range map[string][]string{
		`expected redis, postgres, worker`:      {"truffle-lot", "--fault", "kill rediss at 3s"},
		"overlap":                               {"truffle-lot", "--fault", "drop 1% replies", "--fault", "drop 2% replies at 3s"},
		"not for those of a shop":               {"truffle-lot", "--rehearse", "--fault", "kill redis at 3s"},
		"--torture goes with --seed":            {"truffle-lot", "--torture"},
		"--torture goes with":                   {"--torture", "--fault", "kill redis at 3s"},
		"--minutes 0 is out of range":           {"--torture", "--minutes", "0"},
		"--minutes NaN is out of range":         {"--torture", "--minutes", "NaN"},
		"--minutes is how long to torture (usa": {"truffle-lot", "--minutes", "3"},
	} {
		cmd := as("dropctl", append([]string{"simulate"}, args...)...)
		var problems bytes.Buffer
		cmd.Stderr = &problems
		if exit := exitOf(t, cmd.Run()); exit != 2 || !strings.Contains(problems.String(), want) {
			t.Errorf("%v: exit %d, %s", args, exit, &problems)
		}
	}
}

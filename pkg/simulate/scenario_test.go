package simulate

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

func TestTheScenariosThatShip(t *testing.T) {
	for _, want := range []string{"truffle-lot", "ticket-drop", "sneaker-raid"} {
		s := shipped(t, want, 0)
		if s.About == "" || s.Users() < 10_000 || len(s.Lots) == 0 {
			t.Errorf("%s: %q, %d users, %d lots", want, s.About, s.Users(), len(s.Lots))
		}
		if scaled := s.Scaled(1000); scaled.Users() != 1000 || len(scaled.Crowds) != len(s.Crowds) || s.Users() < 10_000 {
			t.Errorf("%s scaled to 1,000 has %d", want, scaled.Users())
		}
	}
	if names := Shipped(); len(names) != 3 {
		t.Errorf("%v ship", names)
	}
	if bots := shipped(t, "sneaker-raid", 0).Crowds[1]; !bots.Fresh || bots.Tabs < 2 {
		t.Errorf("there are no bots in the raid: %+v", bots)
	}
}

const little = `lots: [{lot: hat, stock: 5}, {lot: cap, stock: 1, hold: 2s, max_hold: 9s}]
crowds:
  fan:
    users: 10
`

// parse reads a scenario whose files are those of the map.
func parse(text string, files map[string]string) (Scenario, error) {
	read := func(name string) ([]byte, error) {
		if data, ok := files[name]; ok {
			return []byte(data), nil
		}
		return nil, fault.New(fault.Usage, "%s cannot be read", name)
	}
	return Parse(Source{Name: "s.yaml", Text: []byte(text), Read: read, Lots: seedLots})
}

func TestEveryFieldOfAScenarioIsRead(t *testing.T) {
	ms := time.Millisecond
	s, err := parse(`
about: all of it
seed: 9
crowds:
  bot-1:
    users: 3
    arrive: {replay: when.txt, speed: 2, after: 1s}
    visits: 2..4
    tabs: 2
    wants: {cap: 3, hat: 1}
    qty: {1: 70, 2..5: 30}
    patience: 1s..2s
    insist: 7
    pause: 10ms
    ignore_limits: true
    double_click: 10%
    reload: 0.2
    mistake: 3%
    own_hold: 4%
    hold: 1s..3s
    think: 0s..1s
    ends: {pay: 6, abandon: 4}
    payment: {takes: {5ms..6ms: 9, 7s: 1}, declined: 7%, attempts: 8, unanswered: 15%, late: 16%}
    pay_twice: 9%
    regret: 11%
    refund: 12%
    refund_after: 13ms
    satisfied: 14%
lots: shop.csv
gateway: {answers: 5ms..6ms, timeout: 2s, declined: 17%, silent: 18%, undecided: 19%, decides: 1s..2s, refund_refused: 20%}
`, map[string]string{"shop.csv": "lot,stock\nhat,5\ncap,2\n", "when.txt": "# access log\n2026-11-27T10:00:02Z\n2026-11-27T10:00:00.5Z\n"})
	if err != nil {
		t.Fatal(err)
	}
	want := Crowd{
		Name: "bot-1", Users: 3, Arrive: Arrival{Curve: Replay, After: time.Second, Times: []time.Duration{750 * ms, 0}},
		Visits: Range[int64]{2, 4}, Tabs: 2, Wants: Choices[int]{{1, 3}, {0, 1}}, Qty: Choices[Range[int64]]{{Range[int64]{1, 1}, 70}, {Range[int64]{2, 5}, 30}},
		Patience: Range[time.Duration]{1000 * ms, 2000 * ms}, Insist: Range[int64]{7, 7}, Pause: Range[time.Duration]{10 * ms, 10 * ms}, Fresh: true,
		DoubleClick: 0.1, Reload: 0.2, Mistake: 0.03, OwnHold: 0.04, Hold: Range[time.Duration]{1000 * ms, 3000 * ms},
		Think: Range[time.Duration]{0, 1000 * ms}, Endings: Choices[ending]{{pay, 6}, {abandon, 4}},
		Payment: Choices[Range[time.Duration]]{{Range[time.Duration]{5 * ms, 6 * ms}, 9}, {Range[time.Duration]{7000 * ms, 7000 * ms}, 1}}, Declined: 0.07, Attempts: 8, Unanswered: 0.15, PaidLate: 0.16, PayTwice: 0.09, Regret: 0.11, Refund: 0.12,
		RefundIn: Range[time.Duration]{13 * ms, 13 * ms}, Satisfied: 0.14,
	}
	if s.Name != "s.yaml" || s.About != "all of it" || s.Seed != 9 || len(s.Lots) != 2 || len(s.Crowds) != 1 || !reflect.DeepEqual(s.Crowds[0], want) {
		t.Errorf("got  %+v\nwant %+v", s.Crowds, want)
	}
	gateway := Gateway{Answers: always(Range[time.Duration]{5 * ms, 6 * ms}), Timeout: 2000 * ms, Declined: 0.17, Silent: 0.18, Undecided: 0.19,
		Decides: Range[time.Duration]{1000 * ms, 2000 * ms}, RefundRefused: 0.2}
	if s.Gateway == nil || !reflect.DeepEqual(*s.Gateway, gateway) {
		t.Errorf("got  %+v\nwant %+v", s.Gateway, gateway)
	}
	if s.Lots[0].Hold != drop.DefaultHold {
		t.Errorf("the lots have no defaults: %+v", s.Lots[0])
	}
}

func TestAMistakeInAScenarioIsToldWithItsPlace(t *testing.T) {
	for text, want := range map[string]string{
		"":                                             "s.yaml:1:1: there is no scenario in it",
		"- a":                                          "s.yaml:1:1: there is no scenario in it",
		"{lots: [], crowds: {}}":                       "s.yaml:1:1: there is no scenario in it",
		"lots: [\n":                                    "the YAML is malformed",
		little + "---\nlots: x":                        "behind the end",
		little + "crowd: {}":                           `s.yaml:5:1: crowd: unknown field "crowd"`,
		little + "lots: []":                            "s.yaml:5:1: lots: it stands twice",
		little + "    userz: 1":                        `s.yaml:5:5: crowds.fan.userz: unknown field "userz"`,
		little + "    users: 2":                        "s.yaml:5:5: crowds.fan.users: it stands twice",
		little + "  fan: {}":                           "s.yaml:5:3: crowds.fan: it stands twice",
		little + "  a b: {}":                           `s.yaml:5:3: crowds: "a b" is no name`,
		little + "  bot: {}":                           "crowds.bot.users: it is missing",
		little + "  bot: 3":                            "s.yaml:5:8: crowds.bot: fields are expected here",
		little + "    <<: {a: 1}":                      "unknown field",
		little + "    think: 5":                        `s.yaml:5:12: crowds.fan.think: "5" cannot be read`,
		little + "    think: 2s..":                     `cannot be read`,
		little + "    think: 2s..1s":                   "ends before it begins",
		little + "    payment: {takes: {5: 1}}":        `crowds.fan.payment.takes: "5" cannot be read`,
		little + "gateway: {silent: 100%}":             "gateway.silent: what is never answered otherwise is asked for ever",
		little + "    think: 2h":                       "not within 0s and 1h0m0s",
		little + "    visits: 0":                       "not within 1 and 1000",
		little + "    tabs: 1..2":                      "is a range",
		little + "    visits: 1.5":                     "cannot be read",
		little + "    satisfied: 101%":                 "is no share",
		little + "    satisfied: NaN":                  "is no share",
		little + "    ignore_limits: 1":                "neither true nor false",
		little + "    qty: {0: 1}":                     "not within 1 and 1000",
		little + "    qty: {1: 0}":                     "all weights are 0",
		little + "    qty: {1: 1, 2: -1}":              "is no weight",
		little + "    qty: 2":                          "values with their weights",
		little + "    ends: {run: 1}":                  `s.yaml:5:12: crowds.fan.ends: "run" is no way to end`,
		little + "    wants: {shoe: 1}":                `there is no lot "shoe"`,
		little + "    arrive: {}":                      "one curve is expected",
		little + "    arrive: {spike: 1s, ramp: 1s}":   "one curve is expected",
		little + "    arrive: {replay: gone.txt}":      "gone.txt cannot be read",
		little + "    arrive: {replay: [now]}":         `line 1: "now" is no time`,
		little + "    arrive: {replay: []}":            "there is no time in it",
		little + "    arrive: {replay: [0, 99999999]}": "the replay takes longer",
		little + "    payment: {attempts: 0}":          "s.yaml:5:25: crowds.fan.payment.attempts",
		little + "    own_hold: 1%\n    hold: 1s..10s": "longer than max_hold of lot cap",
		little + "    think: &x 1s\n    pause: *x":     "crowds.fan.pause: a single value is expected here",
		"crowds: {fan: {users: 1}}":                    "lots: it is missing",
		"lots: [{lot: hat, stock: 1}]":                 "crowds: it is missing",
		"lots: gone.csv\ncrowds: {fan: {users: 1}}":    "s.yaml:1:7: lots: gone.csv cannot be read",
		"lots: bad.csv\ncrowds: {fan: {users: 1}}":     "s.yaml:1:7: lots.stock: bad.csv:2:5: ",
		"lots:\n- 7\ncrowds: {fan: {users: 1}}":        "s.yaml:2:3: lots: ",
		"lots: []\ncrowds: {fan: {users: 1}}":          "there is no lot in it",
		"seed: -1\n" + little:                          "s.yaml:1:7: seed: ",
		"crowds: {fan: {users: 1}}\nlots:\n- {lot: hat, stock: 1, stok: 1}":   "s.yaml:3:24: lots.stok",
		strings.Replace(little, "10", "2000000", 1):                           "not within 1 and 1000000",
		strings.Replace(little, "10", "600000", 1) + "  bot: {users: 600000}": "1200000 users are more than 1000000",
		little + "    think: \xff":                                            "no text",
	} {
		_, err := parse(text, map[string]string{"bad.csv": "lot,stock\nhat,many\n"})
		if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", text, err, want)
			continue
		}
		for _, p := range fault.ProblemsOf(err) {
			if p.Line < 1 || p.Column < 1 || p.Message == "" || p.Hint == "" {
				t.Errorf("%q: a problem without place or hint: %+v", text, p)
			}
		}
	}
	_, err := parse(little+"    think: x\n    pause: y\n    nope: z\n", nil)
	if list := fault.ProblemsOf(err); len(list) != 3 || list[0].Line != 5 || list[2].Line != 7 {
		t.Errorf("not all problems are told: %v", list)
	}
}

// FuzzParse looks for texts that make the parser panic, or that it lets pass although the users could not live by them.
func FuzzParse(f *testing.F) {
	for _, name := range Shipped() {
		text, _, _ := ShippedText(name)
		f.Add(string(text))
	}
	f.Add(little)
	f.Add(little + "    arrive: {replay: [1, 2s, 2026-11-27T10:00:00Z], speed: 0.5}\n")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := parse(text, map[string]string{"truffle-lots.csv": "lot,stock\nhat,5\n", "x": "1\n2\n"})
		if err != nil {
			if len(fault.ProblemsOf(err)) == 0 {
				t.Fatalf("an error without a problem: %v", err)
			}
			return
		}
		if s.Users() < 1 || s.Users() > MaxUsers {
			t.Fatalf("%d users", s.Users())
		}
		for c := range s.Crowds {
			w := who{int32(c), int32(s.Crowds[c].Users - 1)}
			at, visits := s.comes(w)
			p := s.plan(w, 1)
			if at < 0 || visits < 1 || p.qty < 1 || p.paying < 0 || p.patience < 0 {
				t.Fatalf("comes at %s for %d visits: %+v", at, visits, p)
			}
			r := (&visit{number: 1}).reserve(p, s.userName(w))
			if err := r.Check(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

package payment

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/dropctl/dropctl/pkg/drop"
)

func TestAnswers(t *testing.T) {
	for body, want := range map[string]drop.Payment{
		`{"status":"approved","reference":"ch_1"}`:                                 {Decision: drop.PaymentApproved, Ref: "ch_1"},
		` {"reference":"ch_1","more":{"a":[1]},"status":"approved","attempt":2} `:  {Decision: drop.PaymentApproved, Ref: "ch_1"},
		`{"status":"approved","reference":"ch_1","reservation":"r","reason":null}`: {Decision: drop.PaymentApproved, Ref: "ch_1"},
		`{"status":"declined"}`:                                             {Decision: drop.PaymentDeclined},
		`{"status":"declined","reason":"no\nfunds"}`:                        {Decision: drop.PaymentDeclined, Reason: "no funds"},
		`{"status":"declined","reason":"` + strings.Repeat("é", 300) + `"}`: {Decision: drop.PaymentDeclined, Reason: strings.Repeat("é", 127)},
		`{"status":"pending"}`:                                              {Decision: drop.PaymentPending},
	} {
		if got, err := parseAnswer([]byte(body), "r", 2); err != nil || got != want {
			t.Errorf("%s: %+v, %v", body, got, err)
		}
	}
	for _, body := range []string{``, `null`, `[]`, `"approved"`, `{`, `{"status":"approved","reference":"x"}}`, `{"status":"approved","reference":"x"} {}`, `{"status":"paid"}`,
		`{"status":true}`, `{"status":"approved","reference":7}`, `{"status":"approved","reference":""}`, `{"Status":"approved","reference":"x"}`,
		`{"status":"approved","reference":"a\u0000b"}`, `{"status":"approved","reference":"x","attempt":"2"}`, `{"status":"approved","reference":"x","attempt":3}`,
		`{"status":"approved","reference":"x","reservation":null}`, "{\"status\":\"approved\",\"reference\":\"\xff\"}", `{"status":"declined","reason":7}`} {
		if got, err := parseAnswer([]byte(body), "r", 2); err == nil {
			t.Errorf("%s passed: %+v", body, got)
		}
	}
}

// No bytes make the reader fail otherwise than with an error, and what passes can be recorded.
func FuzzAnswer(f *testing.F) {
	for _, seed := range []string{`{"status":"approved","reference":"ch_1"}`, `{"status":"declined","reason":"\ud800"}`, `{"status":"pending","attempt":2,"x":[{}]}`, `{"a":1,"a":2}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		p, err := parseAnswer(body, "r", 2)
		if err != nil {
			return
		}
		if e := p.Check(); e != nil || !json.Valid(body) {
			t.Errorf("%q passed as %+v: %v", body, p, e)
		}
	})
}

package payment

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/dropctl/dropctl/pkg/drop"
)

// parseAnswer reads a gateway's answer about a charge or refund. It is an error unless the answer is certain: one JSON
// object, nothing behind it, no field that counts twice, and about what was asked, as far as it says so. Fields of the
// gateway's own are skipped.
func parseAnswer(body []byte, reservation string, number int) (drop.Payment, error) {
	fields, err := members(body)
	if err != nil {
		return drop.Payment{}, err
	}
	if about, said := fields["reservation"]; said && !isText(about, reservation) {
		return drop.Payment{}, errors.New("the answer is about another reservation")
	}
	if about, said := fields["attempt"]; said && string(about) != fmt.Sprint(number) {
		return drop.Payment{}, errors.New("the answer is about another attempt")
	}
	var p drop.Payment
	for name, to := range map[string]*string{"status": (*string)(&p.Decision), "reference": &p.Ref, "reason": &p.Reason} {
		if value, said := fields[name]; said && string(value) != "null" {
			if err := json.Unmarshal(value, to); err != nil {
				return drop.Payment{}, fmt.Errorf("%s is not a text", name)
			}
		}
	}
	p.Reason = drop.TidyText(p.Reason) // a decline stays one, however it is worded
	return p, p.Check()
}

// members returns the fields of a JSON object, each of which must be there once.
func members(body []byte) (map[string]json.RawMessage, error) {
	broken := errors.New("the answer is not one JSON object")
	if !utf8.Valid(body) {
		return nil, broken
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	if open, err := dec.Token(); err != nil || open != json.Delim('{') {
		return nil, broken
	}
	fields := map[string]json.RawMessage{}
	for dec.More() {
		name, err := dec.Token()
		key, ok := name.(string)
		var value json.RawMessage
		if err != nil || !ok || dec.Decode(&value) != nil {
			return nil, broken
		}
		if _, twice := fields[key]; twice {
			return nil, fmt.Errorf("the answer says %.40q twice", key)
		}
		fields[key] = value
	}
	if _, err := dec.Token(); err != nil || len(bytes.TrimSpace(body[dec.InputOffset():])) > 0 {
		return nil, broken
	}
	return fields, nil
}

func isText(value json.RawMessage, want string) bool {
	var text string
	return json.Unmarshal(value, &text) == nil && text == want
}

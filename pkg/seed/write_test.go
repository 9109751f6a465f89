package seed

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"strconv"
	"strings"
	"time"
)

// writeCSV and writeJSON write rows as an operator could have written them, every default spelt out.
func writeCSV(rows []Row) string {
	var b bytes.Buffer
	w := csv.NewWriter(&b)
	_ = w.Write(fieldNames[:])
	for _, r := range rows {
		_ = w.Write(texts(r))
	}
	w.Flush()
	return b.String()
}

func writeJSON(rows []Row) string {
	var list []map[string]any
	for _, r := range rows {
		m := map[string]any{}
		for i, text := range texts(r) {
			m[fieldNames[i]] = text
			if field(i).counts() {
				m[fieldNames[i]] = json.Number(text)
			}
		}
		list = append(list, m)
	}
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(list)
	return b.String()
}

func texts(r Row) []string {
	d := r.Definition.WithDefaults()
	moment := func(t time.Time) string {
		if t.IsZero() {
			return ""
		}
		return t.Format(time.RFC3339Nano)
	}
	return []string{string(d.Lot), strconv.FormatInt(d.Stock, 10), strconv.FormatInt(d.Limit, 10), d.Hold.String(), d.MaxHold.String(),
		moment(d.Opens), moment(d.Closes), string(d.Late), string(d.Status), d.Name}
}

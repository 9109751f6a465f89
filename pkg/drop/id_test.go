package drop

import (
	"strings"
	"testing"
)

func TestParseLotID(t *testing.T) {
	for s, ok := range map[string]bool{
		"truffle-99": true, "a": true, "group:lot": true, "A.b_c-9": true, strings.Repeat("x", 48): true,
		"": false, ":": false, ":a": false, "a:": false, "a:b:c": false, "-a": false, ".a": false, "a b": false, "a~b": false, "ä": false,
		"a/b": false, "..": false, "a\x00": false, "{a}": false, strings.Repeat("x", 49): false,
	} {
		_, err := ParseLotID(s)
		if (err == nil) != ok {
			t.Errorf("ParseLotID(%q) = %v, want ok %v", s, err, ok)
		}
	}
}

func TestGroupSharesShard(t *testing.T) {
	if a, b := LotID("g:one").Shard(16), LotID("g:two").Shard(16); a != b {
		t.Errorf("lots of one group lie on shards %d and %d", a, b)
	}
}

func TestAttemptTellsTriplesApart(t *testing.T) {
	seen := map[string]string{}
	for _, tr := range [][3]string{{"a", "b", "c"}, {"a", "bc", ""}, {"ab", "", "c"}, {"a", "", "bc"}, {"abc", "", ""}} {
		h := AttemptOf(LotID(tr[0]), tr[1], tr[2])
		if len(h) != AttemptLen {
			t.Errorf("attempt %q has %d bytes", h, len(h))
		}
		if other, dup := seen[h]; dup {
			t.Errorf("%v and %s share an attempt", tr, other)
		}
		seen[h] = strings.Join(tr[:], "|")
	}
}

func FuzzParseReservationID(f *testing.F) {
	f.Add("g:lot~" + AttemptOf("g:lot", "u", "k") + "~7")
	f.Add("lot~~")
	f.Add("~~~~")
	f.Fuzz(func(t *testing.T, s string) {
		id, err := ParseReservationID(s)
		if err == nil && id.String() != s {
			t.Fatalf("%q parses to %q", s, id)
		}
	})
}

func FuzzParseLotID(f *testing.F) {
	f.Add("g:lot")
	f.Fuzz(func(t *testing.T, s string) {
		id, err := ParseLotID(s)
		if err == nil && (string(id) != s || strings.ContainsAny(s, "{}~/ \t\n*")) {
			t.Fatalf("%q is accepted", s)
		}
	})
}

func TestCheckText(t *testing.T) {
	for s, ok := range map[string]bool{
		"user 1": true, "é": true, strings.Repeat("x", 128): true,
		"": false, "a\tb": false, "a\nb": false, "\x7f": false, "\xff": false, "\u200b": false, strings.Repeat("x", 129): false, strings.Repeat("€", 100): false,
	} {
		if err := CheckText("user", s, true); (err == nil) != ok {
			t.Errorf("CheckText(%q) = %v, want ok %v", s, err, ok)
		}
	}
}

// Whatever somebody else words, it fits, and stays as it is if it did.
func TestTidyText(t *testing.T) {
	for in, want := range map[string]string{
		"no funds": "no funds", "": "", "a\nb\x00c": "a b c", "\xff": "\uFFFD",
		strings.Repeat("x", 1<<20): strings.Repeat("x", MaxTextRunes), strings.Repeat("\U0001F642", 100): strings.Repeat("\U0001F642", MaxTextBytes/4),
	} {
		if got := TidyText(in); got != want {
			t.Errorf("TidyText(%.40q) = %q", in, got)
		} else if err := CheckText("reason", got, false); err != nil {
			t.Error(err)
		}
	}
}

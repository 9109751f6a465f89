package sign

import (
	"encoding/hex"
	"strings"
	"testing"
	"time"

	"github.com/dropctl/dropctl/pkg/fault"
)

var noon = time.Unix(1_700_000_000, 0)

// The value was made with another program: printf '1700000000.{"a":1}' | openssl dgst -sha256 -hmac secret
func TestTheHeaderIsWhatOthersCompute(t *testing.T) {
	const want = "t=1700000000,v1=49f24e537407743fa4a0242bb63b94b9a47ee99cbbe071ccd8a22550ae411686"
	if got := Header("secret", noon, []byte(`{"a":1}`)); got != want {
		t.Errorf("%s, not %s", got, want)
	}
}

func TestVerify(t *testing.T) {
	body := []byte(`{"kind":"sold_out"}`)
	good := Header("secret", noon, body)
	_, v1, _ := strings.Cut(good, ",")
	other := strings.TrimPrefix(Header("older secret", noon, body), "t=1700000000,")
	for _, c := range []struct {
		what   string
		secret string
		header string
		body   string
		now    time.Time
		ok     bool
	}{
		{"as it was signed", "secret", good, string(body), noon, true},
		{"within the tolerance", "secret", good, string(body), noon.Add(Tolerance), true},
		{"a clock that is behind", "secret", good, string(body), noon.Add(-Tolerance), true},
		{"two signatures while the secret changes", "secret", "t=1700000000," + other + "," + v1, string(body), noon, true},
		{"spaces, and something of a later version", "secret", "t=1700000000, v2=abc, " + v1, string(body), noon, true},
		{"too old", "secret", good, string(body), noon.Add(Tolerance + time.Second), false},
		{"from the future", "secret", good, string(body), noon.Add(-Tolerance - time.Second), false},
		{"another body", "secret", good, string(body) + " ", noon, false},
		{"another secret", "Secret", good, string(body), noon, false},
		{"another time", "secret", "t=1700000001," + v1, string(body), noon, false},
		{"two times", "secret", "t=1700000000,t=1700000000," + v1, string(body), noon, false},
		{"no time", "secret", v1, string(body), noon, false},
		{"no signature", "secret", "t=1700000000", string(body), noon, false},
		{"half a signature", "secret", good[:len(good)-2], string(body), noon, false},
		{"a time that is none", "secret", "t=now," + v1, string(body), noon, false},
		{"a time before all", "secret", "t=-9223372036854775808," + v1, string(body), noon, false},
		{"a time behind all", "secret", "t=9223372036854775807," + v1, string(body), noon, false},
		{"nothing", "secret", "", string(body), noon, false},
		{"too much", "secret", good + strings.Repeat(","+v1, 20), string(body), noon, false},
		{"no secret at all", "", Header("", noon, body), string(body), noon, false},
	} {
		err := Verify(c.secret, c.header, []byte(c.body), c.now, Tolerance)
		if (err == nil) != c.ok || err != nil && !fault.Is(err, fault.Unauthorized) {
			t.Errorf("%s: %v", c.what, err)
		}
	}
}

// Whatever a stranger sends: it is refused without a crash unless it really is the signature, and what was signed fits.
func FuzzVerify(f *testing.F) {
	f.Add("secret", "t=1700000000,v1=00", []byte("{}"), int64(1_700_000_000))
	f.Add("", "t=,v1=", []byte(nil), int64(0))
	f.Add("s", "v1=,t=1,t=2,,=,", []byte("x"), int64(1))
	f.Fuzz(func(t *testing.T, secret, header string, body []byte, at int64) {
		at &= 1<<40 - 1
		signed := Header(secret, time.Unix(at, 0), body)
		if err := Verify(secret, signed, body, time.Unix(at, 0), Tolerance); (err == nil) != (secret != "") {
			t.Errorf("what was signed: %v", err)
		}
		if Verify(secret, header, body, time.Unix(at, 0), Tolerance) == nil {
			at, _, _ := parse(header)
			if mine := hex.EncodeToString(mac(secret, at, body)); !strings.Contains(strings.ToLower(header), mine) {
				t.Errorf("%q was taken", header)
			}
		}
		if secret != "" && Verify(secret+"x", signed, body, time.Unix(at, 0), Tolerance) == nil {
			t.Error("another secret fits")
		}
	})
}

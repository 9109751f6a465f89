// Package sign signs the bodies of webhooks, and checks such signatures: of notifications, of calls to a payment gateway,
// and of what a gateway calls back with.
//
// The header Dropctl-Signature holds the time and the HMAC-SHA256 of time, dot and body, in hex: t=1700000000,v1=5257a8….
// The time is signed too, so that a recorded request cannot be sent again later.
package sign

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
	"time"

	"github.com/dropctl/dropctl/pkg/fault"
)

// HeaderName is the HTTP header that carries a signature.
const HeaderName = "Dropctl-Signature"

// Tolerance is how far apart the clocks of sender and receiver may be where nothing else is said.
const Tolerance = 5 * time.Minute

const (
	longestHeader  = 1024 // bytes; a stranger wrote it
	mostSignatures = 8    // more than one while a secret is being changed
)

// Header returns the header's value for a body that is sent at a time; it is signed to the second.
func Header(secret string, at time.Time, body []byte) string {
	t := strconv.FormatInt(at.Unix(), 10)
	return "t=" + t + ",v1=" + hex.EncodeToString(mac(secret, t, body))
}

func mac(secret, t string, body []byte) []byte {
	h := hmac.New(sha256.New, []byte(secret))
	h.Write([]byte(t))
	h.Write([]byte{'.'})
	h.Write(body)
	return h.Sum(nil)
}

// Verify checks that somebody who knows the secret signed the body, no longer ago or further ahead of now than the
// tolerance. Of several v1 one has to fit; what is neither t nor v1 is left to later versions. Its error is
// fault.Unauthorized and repeats nothing of what was sent. An empty secret fits nothing.
func Verify(secret, header string, body []byte, now time.Time, tolerance time.Duration) error {
	t, signatures, ok := parse(header)
	if !ok {
		return refuse("the header " + HeaderName + " is missing or malformed")
	}
	at, err := strconv.ParseInt(t, 10, 64)
	if err != nil || at < 0 {
		return refuse("the time in " + HeaderName + " is not a number of seconds")
	}
	// Compared as numbers: a far time would overflow a duration.
	if limit := int64(tolerance / time.Second); at < now.Unix()-limit || at > now.Unix()+limit {
		return refuse("the signature is too old, or from the future")
	}
	want, fits := mac(secret, t, body), false
	for _, s := range signatures {
		if hmac.Equal(s, want) {
			fits = true
		}
	}
	if !fits || secret == "" {
		return refuse("the signature does not fit the body")
	}
	return nil
}

func refuse(why string) error {
	return fault.New(fault.Unauthorized, "%s", why).WithField(HeaderName).
		WithHint("sign time, dot and body with the shared secret, and see that the clocks are right")
}

// parse reads a header; there must be one time and at least one signature.
func parse(header string) (t string, signatures [][]byte, ok bool) {
	if len(header) > longestHeader {
		return "", nil, false
	}
	for part := range strings.SplitSeq(header, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		switch name {
		case "t":
			if t != "" || value == "" {
				return "", nil, false
			}
			t = value
		case "v1":
			s, err := hex.DecodeString(value)
			if err != nil || len(s) != sha256.Size || len(signatures) == mostSignatures {
				return "", nil, false
			}
			signatures = append(signatures, s)
		}
	}
	return t, signatures, t != "" && len(signatures) > 0
}

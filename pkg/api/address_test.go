package api

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"
)

var ours = proxies{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("127.0.0.1/32"), netip.MustParsePrefix("fd00::/8")}

func TestWhoCalls(t *testing.T) {
	for _, c := range []struct {
		name, socket string
		x, forwarded []string
		want         string
	}{
		{"no proxy", "192.0.2.1:99", nil, nil, "192.0.2.1"},
		{"not our proxy", "192.0.2.1:99", []string{"203.0.113.9"}, []string{"for=203.0.113.9"}, "192.0.2.1"},
		{"our proxy", "10.1.2.3:99", []string{"203.0.113.9"}, nil, "203.0.113.9"},
		{"our proxy over IPv6", "[fd00::1]:99", []string{"2001:db8::1"}, nil, "2001:db8::1"},
		{"mapped", "[::ffff:10.1.2.3]:99", []string{"::ffff:203.0.113.9"}, nil, "203.0.113.9"},
		{"with a zone", "[fd00::1%eth0]:99", []string{"203.0.113.9"}, nil, "203.0.113.9"},
		{"what the caller wrote before", "10.1.2.3:99", []string{"1.1.1.1, 203.0.113.9"}, nil, "203.0.113.9"},
		{"in lines of its own", "10.1.2.3:99", []string{"1.1.1.1", "garbage", "203.0.113.9 , 10.9.9.9", "10.8.8.8"}, nil, "203.0.113.9"},
		{"only proxies", "10.1.2.3:99", []string{"10.7.7.7,10.8.8.8"}, nil, "10.7.7.7"},
		{"with ports", "10.1.2.3:99", []string{"203.0.113.9:4711"}, nil, "203.0.113.9"},
		{"with ports, IPv6", "10.1.2.3:99", []string{"[2001:db8::1]:4711"}, nil, "2001:db8::1"},
		{"in brackets", "10.1.2.3:99", []string{"[2001:db8::1]"}, nil, "2001:db8::1"},
		{"garbage", "10.1.2.3:99", []string{"203.0.113.9, unknown"}, nil, "10.1.2.3"},
		{"empty", "10.1.2.3:99", []string{""}, nil, "10.1.2.3"},
		{"ends with a comma", "10.1.2.3:99", []string{"203.0.113.9,"}, nil, "10.1.2.3"},
		{"Forwarded", "10.1.2.3:99", nil, []string{`for=1.1.1.1;proto=http, For="203.0.113.9:80";by=10.1.2.3`}, "203.0.113.9"},
		{"Forwarded, IPv6", "10.1.2.3:99", nil, []string{`proto=https; for="[2001:db8::1]:4711"`}, "2001:db8::1"},
		{"Forwarded, hidden", "10.1.2.3:99", nil, []string{"for=_hidden"}, "10.1.2.3"},
		{"Forwarded, none", "10.1.2.3:99", nil, []string{"proto=https"}, "10.1.2.3"},
		{"Forwarded, twice", "10.1.2.3:99", nil, []string{"for=203.0.113.9;for=1.1.1.1"}, "10.1.2.3"},
		{"both agree", "10.1.2.3:99", []string{"203.0.113.9"}, []string{"for=203.0.113.9"}, "203.0.113.9"},
		{"both disagree: one is the caller's", "10.1.2.3:99", []string{"203.0.113.9"}, []string{"for=1.1.1.1"}, "10.1.2.3"},
		{"both, and one is garbage", "10.1.2.3:99", []string{"203.0.113.9"}, []string{"for=?"}, "10.1.2.3"},
		{"no socket", "@", []string{"203.0.113.9"}, nil, "invalid IP"},
	} {
		r := &http.Request{RemoteAddr: c.socket, Header: http.Header{}}
		for name, values := range map[string][]string{"X-Forwarded-For": c.x, "Forwarded": c.forwarded} {
			for _, v := range values {
				r.Header.Add(name, v)
			}
		}
		if got := ours.caller(r).String(); got != c.want {
			t.Errorf("%s: %s, not %s", c.name, got, c.want)
		}
	}
}

// Whatever stands in the headers, the answer is an address of which a proxy of ours spoke, or the proxy's.
func FuzzWhoCalls(f *testing.F) {
	f.Add("203.0.113.9, 10.0.0.2", `for="[2001:db8::1]:5";by=x`)
	f.Add(",,,", `for=";,"`)
	f.Add(strings.Repeat("10.0.0.1,", 500), "for=")
	f.Fuzz(func(t *testing.T, x, forwarded string) {
		r := &http.Request{RemoteAddr: "10.1.2.3:99", Header: http.Header{"X-Forwarded-For": {x}, "Forwarded": {forwarded}}}
		alone := &http.Request{RemoteAddr: "10.1.2.3:99", Header: http.Header{"X-Forwarded-For": {x}}}
		got, one := ours.caller(r), ours.caller(alone)
		if !got.IsValid() || got.Zone() != "" || got.Is4In6() {
			t.Errorf("%v", got)
		}
		if got != one && got.String() != "10.1.2.3" && one.String() != "10.1.2.3" {
			t.Errorf("with Forwarded %v, without %v", got, one)
		}
	})
}

package notify

import (
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"github.com/dropctl/dropctl/pkg/fault"
)

func TestWhichAddressesArePublic(t *testing.T) {
	for _, c := range []struct {
		addresses string
		public    bool
	}{
		{"1.1.1.1 8.8.8.8 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255 128.0.0.0 172.15.255.255 172.32.0.0 192.167.1.1 223.255.255.255", true},
		{"2606:4700::1111 2a00:1450:4001::1 2001:4860:4860::8888 64:ff9b::808:808 ::ffff:8.8.8.8", true},
		{"0.0.0.0 0.1.2.3 10.0.0.1 100.64.0.1 100.100.100.200 127.0.0.1 127.9.9.9 169.254.169.254 172.16.0.1 172.31.255.255 192.0.0.1 192.0.2.1 192.88.99.1", false},
		{"192.168.0.1 198.18.0.1 198.19.255.255 198.51.100.1 203.0.113.9 224.0.0.1 239.1.1.1 240.0.0.1 255.255.255.255", false},
		{":: ::1 ::2 fc00::1 fd00:ec2::254 fe80::1 fec0::1 ff02::1 100::1 2001:db8::1 2001::1 2001:10::1 2002:a00:1::1 2002:808:808::1 3fff::1 4000::1 5f00::1", false},
		{"::ffff:10.0.0.1 ::ffff:127.0.0.1 ::ffff:169.254.169.254 ::127.0.0.1 64:ff9b::a00:1 64:ff9b::7f00:1 64:ff9b::a9fe:a9fe 64:ff9b:1::808:808 fe80::1%eth0 2606:4700::1%eth0", false},
	} {
		for _, text := range strings.Fields(c.addresses) {
			if got := Public(netip.MustParseAddr(text)); got != c.public {
				t.Errorf("%s: public %v", text, got)
			}
		}
	}
	if Public(netip.Addr{}) {
		t.Error("no address at all is public")
	}
}

func TestURLsOfReceivers(t *testing.T) {
	for text, want := range map[string]fault.Code{
		"https://shop.example/hooks":                 "",
		"https://shop.example:8443/a?b=c":            "",
		"https://xn--mller-kva.example/":             "",
		"https://[2606:4700::1111]/":                 "",
		"https://8.8.8.8":                            "",
		"http://shop.example/":                       fault.Invalid,
		"ftp://shop.example/":                        fault.Invalid,
		"https://":                                   fault.Invalid,
		"https:///path":                              fault.Invalid,
		"https:shop.example":                         fault.Invalid,
		"//shop.example/":                            fault.Invalid,
		"shop.example":                               fault.Invalid,
		"":                                           fault.Invalid,
		"https://u:p@shop.example/":                  fault.Invalid,
		"https://u@shop.example/":                    fault.Invalid,
		"https://@shop.example/":                     fault.Invalid,
		"https://shop.example/#part":                 fault.Invalid,
		"https://shop.example/#":                     fault.Invalid,
		"https://shop.example:0/":                    fault.Invalid,
		"https://shop.example:/":                     fault.Invalid,
		"https://shop.example:99999/":                fault.Invalid,
		"https://shop.example/a b":                   fault.Invalid,
		"https://shop.example/a\r\nHost: x":          fault.Invalid,
		"https://müller.example/":                    fault.Invalid,
		"https://10.0.0.1/":                          fault.Forbidden,
		"https://127.0.0.1:9/":                       fault.Forbidden,
		"https://[::1]/":                             fault.Forbidden,
		"https://2130706433/":                        fault.Invalid,
		"https://0x7F.1/":                            fault.Invalid,
		"https://0177.0.0.1/":                        fault.Invalid,
		"https://127.0.0.1./":                        fault.Invalid,
		"https://1.shop.example/":                    "",
		"https://shop.4you/":                         "",
		"https://[::ffff:169.254.169.254]/":          fault.Forbidden,
		"https://[fe80::1%25eth0]/":                  fault.Forbidden,
		"https://h/" + strings.Repeat("a", 2048):     fault.Invalid,
		"https://[64:ff9b::10.0.0.1]/latest/secrets": fault.Forbidden,
	} {
		if err := CheckURL(text, false); fault.CodeOf(err) != want {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	for _, text := range []string{"http://10.0.0.7:9000/", "http://localhost/", "https://[::1]/"} {
		if err := CheckURL(text, true); err != nil {
			t.Errorf("%q, private ones allowed: %v", text, err)
		}
	}
	if err := CheckURL("http://u:p@10.0.0.7/", true); !fault.Is(err, fault.Invalid) || strings.Contains(err.Error(), "u:p") {
		t.Errorf("a password: %v", err)
	}
}

func TestAHostIsLookedUp(t *testing.T) {
	if known, err := CheckHost(t.Context(), "https://localhost/"); !known || !fault.Is(err, fault.Forbidden) {
		t.Errorf("localhost: known %v, %v", known, err)
	}
	if known, err := CheckHost(t.Context(), "https://8.8.8.8/"); !known || err != nil {
		t.Errorf("a public address: known %v, %v", known, err)
	}
	if known, err := CheckHost(t.Context(), "https://no-such-host.invalid/"); known || err != nil {
		t.Errorf("no such host: known %v, %v", known, err)
	}
}

// Whatever is typed: what passes is an https URL of a host, without a user, and never one whose address is private.
func FuzzCheckURL(f *testing.F) {
	for _, text := range []string{"https://shop.example/a?b", "https://[::ffff:7f00:1]/", "https://127.0.0.1:80#", "http://x", "https://u@h", "https://0x7f.1/", "https://[fe80::1%25a]:1/"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if CheckURL(text, true) != nil && CheckURL(text, false) == nil {
			t.Errorf("%q passes only where less is allowed", text)
		}
		if CheckURL(text, false) != nil {
			return
		}
		u, err := url.Parse(text)
		if err != nil || u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.Fragment != "" || strings.ContainsAny(text, "\r\n\t #") {
			t.Errorf("%q passed", text)
		}
		if addr, err := netip.ParseAddr(u.Hostname()); err == nil && !Public(addr) {
			t.Errorf("%q passed: %s is private", text, addr)
		}
	})
}

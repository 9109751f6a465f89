// Package notify tells receivers on the web what happens in the shop: it takes notices from the ledger's queue and posts
// each, signed, to the hooks that want it, again and again until the receiver has it.
//
// A hook's address comes from outside, so that it must not become a way into the network that the worker runs in: what is
// dialled is checked, not only what is written (address.go).
package notify

import (
	"context"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/dropctl/dropctl/pkg/fault"
)

const longestURL = 2048

// CheckURL checks what is written: https, or http where private addresses are allowed; no user, password or fragment; and
// no host that is a private address itself. It asks nobody.
func CheckURL(text string, allowPrivate bool) error {
	bad := func(hint, format string, args ...any) error {
		return fault.New(fault.Invalid, format, args...).WithField("url").WithHint("%s", hint)
	}
	u, err := url.Parse(text)
	switch {
	case len(text) > longestURL:
		return bad("use at most 2048 bytes", "the URL is too long")
	case err != nil || u.Opaque != "" || u.Hostname() == "" || strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r == 0x7f || r > 0x7e }):
		return bad("use https://HOST/PATH; write what is not ASCII in its encoded form", "that is no URL of a receiver")
	case u.Scheme != "https" && u.Scheme != "http":
		return bad("use https://HOST/PATH", "the URL is not of https")
	case u.Scheme == "http" && !allowPrivate:
		return bad("use https, or --allow-private for a receiver within your own network", "the URL is not of https: anybody on the way could read it")
	case u.User != nil:
		return bad("what is sent is signed; leave user and password out", "the URL holds a user or password")
	case u.Fragment != "" || strings.Contains(text, "#"):
		return bad("leave out # and what follows", "the URL has a fragment, which is never sent")
	}
	if _, err := net.LookupPort("tcp", u.Port()); err != nil || u.Port() == "0" || u.Port() == "" && strings.HasSuffix(u.Host, ":") {
		return bad("use a port from 1 to 65535, or none", "the port is none")
	}
	switch addr, err := netip.ParseAddr(u.Hostname()); {
	case err == nil && !allowPrivate && !Public(addr):
		return refuseAddress(addr)
	case err != nil && numberedHost.MatchString(u.Hostname()):
		return bad("write an address as four decimal numbers, such as 8.8.8.8", "the host is a number, which some programs read as an address")
	}
	return nil
}

// numberedHost is a host that ends in a number, as no name does: 2130706433, 0x7f.1 and 0177.0.0.1 are 127.0.0.1 to some
// resolvers.
var numberedHost = regexp.MustCompile(`^(.*\.)?(0[xX][0-9a-fA-F]*|[0-9]+)\.?$`)

func refuseAddress(addr netip.Addr) error {
	return fault.New(fault.Forbidden, "%s is an address within a private or reserved network", addr).WithField("url").
		WithHint("if the receiver really is within your own network, add the hook with --allow-private")
}

// CheckHost looks the host of a checked URL up, and refuses it if any of its addresses is private. known is false if its
// name cannot be looked up from here, which says little about the worker's machine.
func CheckHost(ctx context.Context, text string) (known bool, err error) {
	u, err := url.Parse(text)
	if err != nil {
		return false, fault.New(fault.Invalid, "that is no URL").WithField("url")
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", u.Hostname())
	if err != nil {
		return false, nil //nolint:nilerr // what is dialled is checked in any case
	}
	for _, addr := range addrs {
		if !Public(addr) {
			return true, refuseAddress(addr.Unmap())
		}
	}
	return true, nil
}

// What of IPv4, and of the global unicast space of IPv6, is no address on the public Internet (IANA special-purpose
// registries). Ranges that carry an IPv4 address inside are refused whole, but for NAT64, which is how a machine without
// IPv4 reaches the rest.
var (
	reserved = prefixes("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24",
		"192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/3",
		"2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")
	global6 = netip.MustParsePrefix("2000::/3")
	nat64   = netip.MustParsePrefix("64:ff9b::/96")
)

func prefixes(texts ...string) []netip.Prefix {
	var list []netip.Prefix
	for _, t := range texts {
		list = append(list, netip.MustParsePrefix(t))
	}
	return list
}

// Public reports whether an address is one on the public Internet.
func Public(addr netip.Addr) bool {
	addr = addr.Unmap()
	if !addr.IsValid() || addr.Zone() != "" {
		return false
	}
	if nat64.Contains(addr) {
		b := addr.As16()
		addr = netip.AddrFrom4([4]byte(b[12:]))
	}
	if addr.Is6() && !global6.Contains(addr) {
		return false
	}
	for _, p := range reserved {
		if p.Contains(addr) {
			return false
		}
	}
	return true
}

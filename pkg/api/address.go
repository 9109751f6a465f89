package api

import (
	"net/http"
	"net/netip"
	"strings"
)

// proxies are the addresses whose word about their own callers counts.
type proxies []netip.Prefix

func (p proxies) has(a netip.Addr) bool {
	for _, network := range p {
		if network.Contains(a) {
			return true
		}
	}
	return false
}

// caller returns the address of who called: the socket's, or, where that is a proxy of ours, the last one that a proxy of
// ours has seen. Whatever anybody else has written into the headers does not count, and where they make no sense, or two of
// them disagree, the socket's address is all that is known. It is the zero Addr if not even that is.
func (p proxies) caller(r *http.Request) netip.Addr {
	socket, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	peer := socket.Addr().Unmap().WithZone("")
	if !p.has(peer) {
		return peer
	}
	seen := peer
	for _, header := range []struct {
		values  []string
		address func(string) (netip.Addr, bool)
	}{{r.Header["X-Forwarded-For"], parseAddress}, {r.Header["Forwarded"], forwardedFor}} {
		if len(header.values) == 0 {
			continue
		}
		found, ok := p.lastStranger(header.values, header.address)
		if !ok || seen != peer && found != seen {
			return peer
		}
		seen = found
	}
	return seen
}

// lastStranger goes through a list from its end, where the nearest proxy has written, to the first address that is not a
// proxy's; to the beginning if all are.
func (p proxies) lastStranger(values []string, address func(string) (netip.Addr, bool)) (found netip.Addr, ok bool) {
	for i := len(values) - 1; i >= 0; i-- {
		for rest, more := values[i], true; more; {
			var last string
			rest, last, more = cutLast(rest)
			if found, ok = address(strings.Trim(last, " \t")); !ok || !p.has(found) {
				return found, ok
			}
		}
	}
	return found, ok
}

// cutLast cuts the last element off a list.
func cutLast(list string) (rest, last string, more bool) {
	comma := strings.LastIndexByte(list, ',')
	if comma < 0 {
		return "", list, false
	}
	return list[:comma], list[comma+1:], true
}

// parseAddress reads an address, with or without a port: 1.2.3.4, 1.2.3.4:5, ::1, [::1], [::1]:5.
func parseAddress(s string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(s)
	if err != nil {
		if inner, ok := strings.CutPrefix(s, "["); ok && strings.HasSuffix(inner, "]") {
			a, err = netip.ParseAddr(strings.TrimSuffix(inner, "]"))
		} else {
			var withPort netip.AddrPort
			withPort, err = netip.ParseAddrPort(s)
			a = withPort.Addr()
		}
	}
	return a.Unmap().WithZone(""), err == nil
}

// forwardedFor reads the address of one element of Forwarded (RFC 7239): for="[::1]:5";proto=https.
func forwardedFor(element string) (found netip.Addr, ok bool) {
	for pair := range strings.SplitSeq(element, ";") {
		name, value, _ := strings.Cut(strings.Trim(pair, " \t"), "=")
		if !strings.EqualFold(name, "for") {
			continue
		}
		if found.IsValid() { // twice
			return netip.Addr{}, false
		}
		if inner, quoted := strings.CutPrefix(value, `"`); quoted {
			value = strings.TrimSuffix(inner, `"`)
		}
		if found, ok = parseAddress(value); !ok {
			return netip.Addr{}, false
		}
	}
	return found, ok
}

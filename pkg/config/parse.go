package config

import (
	"fmt"
	"math"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Bytes is a size in bytes. As text it takes B, KiB, MiB, GiB, or KB, MB, GB for powers of 1000.
type Bytes int64

var units = []struct {
	name   string
	factor Bytes
}{
	{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
	{"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3}, {"B", 1},
}

// String writes the size in the largest unit that divides it.
func (b Bytes) String() string {
	for _, u := range units {
		if b != 0 && b%u.factor == 0 {
			return strconv.FormatInt(int64(b/u.factor), 10) + u.name
		}
	}
	return "0B"
}

// ParseBytes reads a whole number with an optional unit, in any case.
func ParseBytes(text string) (Bytes, error) {
	number, factor := strings.TrimSpace(text), Bytes(1)
	for _, u := range units {
		if rest := len(number) - len(u.name); rest > 0 && strings.EqualFold(number[rest:], u.name) {
			number, factor = strings.TrimSpace(number[:rest]), u.factor
			break
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64/int64(factor) {
		return 0, fmt.Errorf("%q is not a size, such as 64MiB", text)
	}
	return Bytes(n) * factor, nil
}

// Rate is how many requests somebody may make in a time. As text it takes 20/s, 600/m, 5000/h, and 0 for any number.
type Rate struct {
	Requests int // 0: any number
	Per      time.Duration
}

const maxRate = 1_000_000

var rateTimes = map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour}

// String writes the rate as ParseRate reads it.
func (r Rate) String() string {
	for unit, per := range rateTimes {
		if r.Requests > 0 && r.Per == per {
			return strconv.Itoa(r.Requests) + "/" + unit
		}
	}
	return "0"
}

// ParseRate reads a rate.
func ParseRate(text string) (Rate, error) {
	if text == "0" {
		return Rate{}, nil
	}
	number, unit, _ := strings.Cut(text, "/")
	n, err := strconv.Atoi(number)
	per, known := rateTimes[unit]
	if err != nil || !known || n < 0 || n > maxRate {
		return Rate{}, fmt.Errorf("%q is not a rate, such as 20/s, 600/m or 0 for any number; the most is %d", text, maxRate)
	}
	if n == 0 {
		return Rate{}, nil
	}
	return Rate{n, per}, nil
}

// Networks is a list of networks, an address being a network of one.
type Networks []netip.Prefix

// String writes the list as ParseNetworks reads it.
func (n Networks) String() string {
	words := make([]string, len(n))
	for i, p := range n {
		words[i] = p.String()
		if p.IsSingleIP() {
			words[i] = p.Addr().String()
		}
	}
	return strings.Join(words, ",")
}

// ParseNetworks reads addresses and networks, separated by commas.
func ParseNetworks(text string) (Networks, error) {
	var list Networks
	for word := range strings.SplitSeq(text, ",") {
		word = strings.TrimSpace(word)
		if word == "" {
			continue
		}
		p, err := netip.ParsePrefix(word)
		if err != nil {
			var a netip.Addr
			a, err = netip.ParseAddr(word)
			p = netip.PrefixFrom(a, a.BitLen())
		}
		switch {
		case err != nil || p.Addr().Zone() != "":
			return nil, fmt.Errorf("%q is neither an address nor a network, such as 10.0.0.1 or 10.0.0.0/8", word)
		case p.Masked() != p:
			return nil, fmt.Errorf("%q is an address within a network; the network is %s", word, p.Masked())
		case p.Addr().Is4In6():
			return nil, fmt.Errorf("%q is an IPv4 address written as IPv6; write it as IPv4", word)
		}
		list = append(list, p)
	}
	return list, nil
}

var levels = regexp.MustCompile(`^(memory|disk|replicas=[1-9][0-9]?)$`)

// parse checks the text of a setting and returns it in the type of its field in Config.
func (s Setting) parse(raw any) (any, error) {
	in, err := s.text(raw)
	if err != nil {
		return nil, err
	}
	switch s.kind {
	case url:
		return NewURL(in), nil
	case secret:
		if isReference(in) {
			return newSecret(in, in), nil
		}
		return NewSecret(in), nil
	case duration:
		d, err := time.ParseDuration(in)
		if err != nil {
			return nil, fmt.Errorf("%q is not a duration, such as 10s, 15m or 24h", in)
		}
		return d, s.inRange(int64(d), d)
	case size:
		b, err := ParseBytes(in)
		if err != nil {
			return nil, err
		}
		return b, s.inRange(int64(b), b)
	case count:
		n, err := strconv.Atoi(in)
		if err != nil {
			return nil, fmt.Errorf("%q is not a whole number", in)
		}
		return n, s.inRange(int64(n), n)
	case boolean:
		return parseBool(in)
	case level:
		if !levels.MatchString(in) {
			return nil, fmt.Errorf("%q is none of memory, disk, replicas=N (N: 1 to 99)", in)
		}
		return in, nil
	case frequency:
		return ParseRate(in)
	case networks:
		return ParseNetworks(in)
	}
	if s.Choices != nil && !slices.Contains(s.Choices, in) {
		return nil, fmt.Errorf("%q is none of %s", in, strings.Join(s.Choices, ", "))
	}
	return in, nil
}

func parseBool(text string) (bool, error) {
	if text == "" {
		return false, nil
	}
	b, err := strconv.ParseBool(text)
	if err != nil {
		return false, fmt.Errorf("%q is neither true nor false", text)
	}
	return b, nil
}

// text accepts what YAML makes of a plain value.
func (s Setting) text(raw any) (string, error) {
	switch x := raw.(type) {
	case string:
		return x, nil
	case bool, int, int64, uint64, float64:
		return fmt.Sprint(x), nil
	}
	return "", fmt.Errorf("it takes one value, not a list or a map")
}

func (s Setting) inRange(n int64, shown any) error {
	if n < s.min {
		return fmt.Errorf("%v is too small", shown)
	}
	if s.max > 0 && n > s.max {
		most := any(s.max)
		if s.kind == duration {
			most = time.Duration(s.max)
		}
		return fmt.Errorf("%v is too large, the most is %v", shown, most)
	}
	return nil
}

//go:build !linux

package testkit

import (
	"errors"
	"net/netip"
	"testing"
)

// island is a network with one link to ours; only Linux has such.
type island struct {
	*FaultyProxy
	here, there netip.Addr
}

func newIsland(testing.TB) (*island, error) {
	return nil, errors.New("only Linux has networks within a machine")
}

func (i *island) Inside(fn func() error) error { return fn() }

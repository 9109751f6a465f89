package wire

import (
	"context"

	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/doctor"
	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/stock"
)

// DoctorStock is the Redis that the settings name, as doctor sees it. It is opened for the look, in as many shards as it
// says it has, so that a setting which is wrong is a finding too.
func DoctorStock(cfg *config.Config, getenv func(string) string) doctor.Stock {
	return doctorStock{cfg, getenv}
}

type doctorStock struct {
	cfg    *config.Config
	getenv func(string) string
}

func (d doctorStock) Target() string {
	s, err := OpenStock(d.cfg, d.getenv, ledger.Installation{Shards: 1}) // it dials nothing
	if err != nil {
		return ""
	}
	defer func() { _ = s.Close() }()
	return s.Target()
}

func (d doctorStock) Health(ctx context.Context) (doctor.Redis, error) {
	s, err := OpenStockAlone(ctx, d.cfg, d.getenv)
	if err != nil {
		return doctor.Redis{}, err
	}
	defer func() { _ = s.Close() }()
	h, err := s.Health(ctx)
	return doctor.Redis{Nodes: DoctorNodes(h.Nodes), Outbox: h.Outbox, Frozen: h.Frozen, Unknown: h.Unknown}, err
}

// DoctorNodes are Redis servers as doctor sees them.
func DoctorNodes(nodes []stock.NodeHealth) []doctor.Node {
	out := make([]doctor.Node, len(nodes))
	for i, n := range nodes {
		out[i] = doctor.Node(n)
	}
	return out
}

// DoctorLedger is the PostgreSQL that the settings name, as doctor sees it.
func DoctorLedger(cfg *config.Config, getenv func(string) string) doctor.Ledger {
	return doctorLedger{cfg, getenv}
}

type doctorLedger struct {
	cfg    *config.Config
	getenv func(string) string
}

func (d doctorLedger) Target() string {
	o, err := LedgerOptions(d.cfg, d.getenv)
	if err != nil {
		return ""
	}
	target, _ := o.Target() // "" where it cannot be read
	return target
}

func (d doctorLedger) Health(ctx context.Context) (doctor.Postgres, error) {
	o, err := LedgerOptions(d.cfg, d.getenv)
	if err != nil {
		return doctor.Postgres{}, err
	}
	h, err := ledger.ReadHealth(ctx, o)
	return doctor.Postgres(h), err
}

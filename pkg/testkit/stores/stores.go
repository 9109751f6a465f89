// Package stores gives tests a shop on private servers: a migrated ledger, and lots that are on sale. Only tests import it;
// it stands beside package testkit since the tests of the ledger itself use that.
package stores

import (
	"testing"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/stock"
	"github.com/dropctl/dropctl/pkg/testkit"
)

// Database makes a migrated database for the test, on the server that all tests of the process share; shards is P of its
// installation, 0 the default.
func Database(t testing.TB, shards int) testkit.Database {
	t.Helper()
	return testkit.Migrated(t, shards, func(d testkit.Database) error { return migrate(t, d, shards) })
}

// On migrates the database of a server that the test has for itself.
func On(t testing.TB, server *lab.Postgres, shards int) testkit.Database {
	t.Helper()
	d := testkit.Database{Server: server, Name: lab.Database}
	if err := migrate(t, d, shards); err != nil {
		t.Fatal(err)
	}
	return d
}

func migrate(t testing.TB, d testkit.Database, shards int) error {
	_, err := ledger.MigrateUp(t.Context(), ledger.Options{URL: d.URL(lab.Owner)}, ledger.MigrateOptions{AppRole: string(lab.App), Shards: shards})
	return err
}

// Ledger opens a database as the shop does, for the time of the test.
func Ledger(t testing.TB, db testkit.Database) *ledger.Ledger {
	t.Helper()
	l, err := ledger.Open(t.Context(), ledger.Options{URL: db.URL(lab.App), Application: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

// Stock opens an engine for the installation of a ledger, for the time of the test.
func Stock(t testing.TB, redisURL string, l *ledger.Ledger) *stock.Stock {
	t.Helper()
	in := l.Installation()
	s, err := stock.Open(stock.Options{URL: redisURL, Installation: in.ID, Shards: in.Shards})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// Load creates a lot in the ledger and loads it into Redis.
func Load(t testing.TB, s *stock.Stock, l *ledger.Ledger, def drop.Definition) {
	t.Helper()
	def = def.WithDefaults()
	if _, err := l.CreateLot(t.Context(), def, "test"); err != nil {
		t.Fatal(err)
	}
	issued, err := l.IssueEpoch(t.Context(), def.Lot, ledger.IssueRequest{OnlyUnseen: true, Actor: "test", Reason: "seed"})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Load(t.Context(), stock.LoadRequest{Definition: def, Epoch: issued.Epoch, Closing: issued.Closing, Actor: "test", Reason: "seed"}); err != nil {
		t.Fatal(err)
	}
}

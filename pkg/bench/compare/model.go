// Package compare lets several ways of handing out units under a crowd meet on the same private servers, so that
// everybody can see what each costs and what it loses.
//
// A model is a file, readable in a minute, written as a competent engineer would write it. All make the same promise as
// far as they can: as many units as there are and no more, one for each user, held until a deadline. Nothing they say
// of themselves is believed: what callers were told they got is counted outside (drill.go).
package compare

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

// Model is one way of handing out units.
type Model struct {
	Name  string
	Does  string // in a line
	place place
	pool  int // connections with which the search for the best number begins; 0: it has its own idea
	open  func(ctx context.Context, c client) (shop, error)
}

// place is the server that a model works on.
type place int

const (
	onPostgres    place = iota
	onRedis             // append-only file synced every second
	onRedisSynced       // synced before each answer
)

// Models lists them all.
func Models() []Model {
	return []Model{
		pgForUpdate, pgGuardedUpdate, pgUnitRows, pgOptimistic, pgSerializable, pgAdvisory,
		redisWatch, redisLock, redisScript, dropctl, dropctlFsync,
	}
}

// Names lists the models' names.
func Names() []string {
	var names []string
	for _, m := range Models() {
		names = append(names, m.Name)
	}
	return names
}

// client is how a process of a model's shop reaches its server.
type client struct {
	url   string // with a password
	pool  int    // connections at most
	count *counts
}

// counts is what a model tells of its own efforts.
type counts struct {
	aborts  atomic.Int64 // attempts thrown away because somebody else was faster
	retries atomic.Int64 // attempts after the first
	waited  atomic.Int64 // nanoseconds for a lock that is not the database's own
}

// shop is one process that sells. Its methods are called by all callers at once.
type shop interface {
	// Stock forgets everything and puts so many units of each lot on sale.
	Stock(ctx context.Context, lots []drop.LotID, units int64) error
	// Reserve holds one unit. Errors: fault.SoldOut; fault.CustomerLimit if the user has one; any other says nothing.
	Reserve(ctx context.Context, lot drop.LotID, user string, hold time.Duration) (claim, error)
	// Confirm makes a sale of a hold; fault.HoldExpired if its time is over.
	Confirm(ctx context.Context, c claim) error
	// Sweep takes back all holds that are due.
	Sweep(ctx context.Context) error
	// Knows reports whether the store has the claim.
	Knows(ctx context.Context, c claim) (bool, error)
	// Close ends the connections.
	Close() error
}

// claim is what a caller was told he got.
type claim struct {
	lot  drop.LotID
	user string
	id   drop.ReservationID // of dropctl
}

func soldOut(lot drop.LotID) error { return fault.New(fault.SoldOut, "%s is sold out", lot) }

func overLimit(user string) error { return fault.New(fault.CustomerLimit, "%s has one already", user) }

func tooLate(c claim) error { return fault.New(fault.HoldExpired, "the hold of %s is over", c.user) }

// refused reports whether a rule of the shop said no.
func refused(err error) bool { return fault.ExitOf(err) == fault.ExitRefused }

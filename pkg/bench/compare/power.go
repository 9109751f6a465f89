package compare

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/retry"
)

// Outage is what was left after the server had ended in the middle of a sale: a Redis as by a power failure, with all
// that was not synced to the disk gone; PostgreSQL by SIGKILL, since it has synced before it answers.
type Outage struct {
	Acknowledged int64 `json:"acknowledged"` // holds that callers were told of
	Lost         int64 `json:"lost"`         // of them, those that the restarted server does not know
}

// powerServer is one that can be ended hard.
type powerServer struct {
	redis *lab.Redis // nil: PostgreSQL
	end   func() error
	start func(context.Context) error
}

// breakable returns the server for a model's outage. Without a C compiler, which Redis' shim needs, the error's code is
// fault.MissingBinary.
func (a *arena) breakable(ctx context.Context, m Model) (powerServer, error) {
	if m.place == onPostgres {
		return powerServer{end: a.postgres.Kill, start: a.postgres.Start}, nil
	}
	fsync := "everysec"
	if m.place == onRedisSynced {
		fsync = "always"
	}
	if a.fragile[fsync] == nil {
		if a.shim == nil {
			shim, err := lab.BuildShim(ctx)
			if err != nil {
				return powerServer{}, err
			}
			a.shim = shim
		}
		o := redisOptions(fsync)
		o.Under = a.shim.Under()
		server, err := lab.StartRedis(ctx, o)
		if err != nil {
			return powerServer{}, err
		}
		a.fragile[fsync] = server
	}
	server := a.fragile[fsync]
	return powerServer{server, func() error { _, err := server.LosePower(); return err }, server.Start}, nil
}

// outage ends the server at a moment of the seed's choosing and asks the restarted one for every hold that was
// acknowledged before.
func (a *arena) outage(ctx context.Context, m Model, pool int) (_ Outage, err error) {
	server, err := a.breakable(ctx, m)
	if err != nil {
		return Outage{}, err
	}
	s, _, err := a.enterOn(ctx, server.redis, m, pool, []drop.LotID{drillLot}, a.o.Stock)
	if err != nil {
		return Outage{}, err
	}
	moment := a.darkAfter/4 + time.Duration(a.dice(m).Int64N(int64(a.darkAfter)))
	book, err := a.sellUntilDark(ctx, s, moment, server.end)
	_ = s.Close() // its server is gone
	if err != nil {
		return Outage{}, err
	}
	if err := server.start(ctx); err != nil {
		return Outage{}, err
	}
	lost, err := a.missing(ctx, m, server, pool, book)
	return Outage{int64(len(book)), lost}, err
}

// patience is how long one waits at most for answers that are on their way when the server ends.
const patience = 10 * time.Second

// sellUntilDark sells until the server ends.
func (a *arena) sellUntilDark(ctx context.Context, s shop, after time.Duration, end func() error) ([]claim, error) {
	var book book
	var dark atomic.Bool
	ctx, cancel := context.WithTimeout(ctx, after+patience) // nobody waits for a server that is gone
	defer cancel()
	var callers errgroup.Group
	for caller := range a.drillCallers {
		callers.Go(func() error {
			for i := 0; ; i++ {
				c, err := s.Reserve(ctx, drillLot, "buyer"+strconv.Itoa(caller)+"-"+strconv.Itoa(i), longHold)
				switch {
				case err == nil:
					book.enter(c)
				case dark.Load(), fault.Is(err, fault.SoldOut): // all of it is on sale no more, and can be lost all the same
					return nil
				default:
					return wrong(err)
				}
			}
		})
	}
	err := retry.Sleep(ctx, after)
	dark.Store(true)
	err = errors.Join(err, end())
	err = errors.Join(err, callers.Wait()) // who is told later than this was told by nobody
	return book.claims, err
}

// missing counts the claims that the store does not know.
func (a *arena) missing(ctx context.Context, m Model, server powerServer, pool int, book []claim) (int64, error) {
	url := a.postgres.SocketURL(lab.Superuser, lab.Database)
	if server.redis != nil {
		url = server.redis.SocketURL()
	}
	s, err := m.open(ctx, client{url, max(1, pool), &counts{}})
	if err != nil {
		return 0, wrong(err)
	}
	var lost, next atomic.Int64
	g, asking := errgroup.WithContext(ctx)
	for range a.drillCallers {
		g.Go(func() error {
			for i := next.Add(1) - 1; i < int64(len(book)); i = next.Add(1) - 1 {
				known, err := s.Knows(asking, book[i])
				if err != nil {
					return fault.Wrap(fault.Unavailable, err, "asking for a hold after the outage")
				}
				if !known {
					lost.Add(1)
				}
			}
			return nil
		})
	}
	err = g.Wait()
	return lost.Load(), errors.Join(err, s.Close())
}

package bars

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/stock"
)

// contender is one way of taking holds. open puts the lots on sale on an emptied server.
type contender struct {
	name string
	open func(ctx context.Context, server *lab.Redis, lots []drop.LotID) (take hold, done func() error, err error)
}

// engine is dropctl itself with everything on: a limit per user, holds with a deadline, the outbox.
var engine = contender{"dropctl", func(ctx context.Context, server *lab.Redis, lots []drop.LotID) (hold, func() error, error) {
	s, err := openEngine(ctx, server, lots)
	if err != nil {
		return nil, nil, err
	}
	return engineHold(s), s.Close, nil
}}

func engineHold(s *stock.Stock) hold {
	return func(ctx context.Context, lot drop.LotID, user string) error {
		// One attempt a user: the name serves as the key too.
		_, err := s.Reserve(ctx, drop.ReserveRequest{Lot: lot, User: user, Key: user, Qty: 1})
		return err
	}
}

const installation = "bench"

// dial opens an engine on the server. No worker empties the outbox here, so its ceiling is out of the way.
func dial(server *lab.Redis) (*stock.Stock, error) {
	return stock.Open(stock.Options{URL: server.SocketURL(), Installation: installation, OutboxMaxBytes: 1 << 40, Timeout: 30 * time.Second})
}

// openEngine opens an engine and puts the lots on sale.
func openEngine(ctx context.Context, server *lab.Redis, lots []drop.LotID) (*stock.Stock, error) {
	s, err := dial(server)
	if err != nil {
		return nil, err
	}
	for _, lot := range lots {
		d := drop.Definition{Lot: lot, Stock: drop.MaxUnits, Limit: 2}
		if err := s.Load(ctx, stock.LoadRequest{Definition: d.WithDefaults(), Epoch: 1, Actor: "bench", Reason: "measure"}); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	return s, nil
}

// PlainScript is the usual pattern, one call a request: the user's hold is a hash that expires, the stock a number.
// It keeps no record of what was sold to whom beyond that hash, tells nobody, and loses the units of a hold that
// expires; it is the floor of what others do, not an equal.
var PlainScript = redis.NewScript(`
local exists = redis.call('EXISTS', KEYS[1])
local held = redis.call('HGET', KEYS[1], 'qty')
if exists == 1 and tonumber(held or 0) > 0 then return -1 end
local left = tonumber(redis.call('GET', KEYS[2]) or 0)
local qty = tonumber(ARGV[1])
if left < qty then return -2 end
redis.call('DECRBY', KEYS[2], qty)
redis.call('HSET', KEYS[1], 'qty', qty, 'user', ARGV[2], 'state', 'held')
redis.call('EXPIRE', KEYS[1], ARGV[3])
return left - qty
`)

// plain sends the usual pattern over a pool of connections.
func plain(pool int) contender {
	return contender{fmt.Sprintf("plain, pool of %d", pool), func(ctx context.Context, server *lab.Redis, lots []drop.LotID) (hold, func() error, error) {
		client, err := plainClient(ctx, server, lots, func(o *redis.Options) { o.PoolSize = pool })
		if err != nil {
			return nil, nil, err
		}
		return plainHold(client), client.Close, nil
	}}
}

// autoPipeline sends the usual pattern through go-redis' AutoPipeline, which gathers the commands of many callers.
func autoPipeline(name string, options redis.AutoPipelineOptions) contender {
	return gathered("AutoPipeline, "+name, options, func(p *redis.AutoPipeliner) hold { return plainHold(p) })
}

// gathered sends what a hold takes through AutoPipeline.
func gathered(name string, options redis.AutoPipelineOptions, holdOn func(*redis.AutoPipeliner) hold) contender {
	return contender{name, func(ctx context.Context, server *lab.Redis, lots []drop.LotID) (hold, func() error, error) {
		client, err := plainClient(ctx, server, lots, func(o *redis.Options) { o.PipelinePoolSize = 16 })
		if err != nil {
			return nil, nil, err
		}
		pipe, err := client.AutoPipelineWithOptions(&options)
		if err != nil {
			return nil, nil, errors.Join(fault.Wrap(fault.Failed, err, "%s", name), client.Close())
		}
		return holdOn(pipe), func() error { return errors.Join(pipe.Close(), client.Close()) }, nil
	}}
}

// floor writes one key for each hold and asks nothing: what no reservation in Redis can cost less than.
var floor = gathered("SET, pipelined", redis.AutoPipelineOptions{MaxBatchSize: 300, MaxConcurrentBatches: 2, Unordered: true}, func(p *redis.AutoPipeliner) hold {
	return func(ctx context.Context, lot drop.LotID, user string) error {
		if err := p.Set(ctx, "hold:"+string(lot)+":"+user, user, 0).Err(); err != nil {
			return fault.Wrap(fault.Unavailable, err, "SET")
		}
		return nil
	}
})

// plainClient connects and puts the lots on sale the usual way: one key each.
func plainClient(ctx context.Context, server *lab.Redis, lots []drop.LotID, change func(*redis.Options)) (*redis.Client, error) {
	o, err := redis.ParseURL(server.SocketURL())
	if err != nil {
		return nil, fault.New(fault.Failed, "the private server's address cannot be read") // without it: it has a password
	}
	change(o)
	client := redis.NewClient(o)
	setUp := client.Pipeline()
	for _, lot := range lots {
		setUp.Set(ctx, stockKey(lot), drop.MaxUnits, 0)
	}
	_, err = setUp.Exec(ctx)
	if err == nil {
		err = PlainScript.Load(ctx, client).Err()
	}
	if err != nil {
		return nil, errors.Join(fault.Wrap(fault.Unavailable, err, "putting the baseline's lots on sale"), client.Close())
	}
	return client, nil
}

func stockKey(lot drop.LotID) string { return "stock:" + string(lot) }

func plainHold(client redis.Scripter) hold {
	sha := PlainScript.Hash()
	return func(ctx context.Context, lot drop.LotID, user string) error {
		left, err := client.EvalSha(ctx, sha, []string{"hold:" + string(lot) + ":" + user, stockKey(lot)}, 1, user, 300).Int64()
		if err != nil {
			return fault.Wrap(fault.Unavailable, err, "the baseline's script")
		}
		if left < 0 {
			return fault.New(fault.Failed, "the baseline refused %s (%d)", user, left)
		}
		return nil
	}
}

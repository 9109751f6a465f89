package cli

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/dropctl/dropctl/pkg/cli/wire"
	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
	"github.com/dropctl/dropctl/pkg/lab"
	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/recovery"
	"github.com/dropctl/dropctl/pkg/retry"
	"github.com/dropctl/dropctl/pkg/simulate"
	"github.com/dropctl/dropctl/pkg/stock"
)

const reopenWithin = 3 * time.Minute // after the last fault

// faultExamples are offered by completion.
var faultExamples = []string{"kill redis at 3s", "restart redis at 3s", "pause postgres 5s at 2s", "drop 1% replies", "delay replies 20ms from postgres", "kill worker at 4s", "flush redis at 5s"}

// mishaps are the faults of a rehearsal, and the laboratory that they are done to.
type mishaps struct {
	laboratory *wire.Laboratory
	faults     []lab.Fault
	done       []simulate.Mishap
	flushes    []flush
	began      time.Time // the worker of this process, if the laboratory has none of its own
}

// flush is the time in which Redis was emptied.
type flush struct{ from, until time.Time }

// aside is how long before and after a fault, as it was reported, an answer may be of that time.
const aside = 10 * time.Millisecond

// parseFaults reads what goes wrong in a rehearsal.
func parseFaults(texts []string) (faults []lab.Fault, err error) {
	for _, text := range texts {
		f, err := lab.ParseFault(text)
		if err != nil {
			return nil, usageFault(err)
		}
		faults = append(faults, f)
	}
	if err := lab.CheckFaults(faults); err != nil {
		return nil, usageFault(err)
	}
	return faults, nil
}

// usageFault is a wrong fault as a wrong use of the command.
func usageFault(err error) error {
	e := fault.As(err)
	return fault.New(fault.Usage, "%s", e.Message).WithField(e.Field).WithHint("%s", e.Hint)
}

// openMishaps opens a laboratory in which the faults can happen: what they are done to is a process of its own, or is
// reached through a proxy. A killed Redis loses nothing that was acknowledged: it syncs always.
func (a *app) openMishaps(ctx context.Context, faults []lab.Fault, payment config.PaymentTarget) (*mishaps, error) {
	o := wire.LaboratoryOptions{Redis: lab.RedisOptions{Fsync: "always"}, Payment: payment}
	for _, target := range []lab.FaultTarget{lab.RedisTarget, lab.PostgresTarget} {
		if lab.NeedLink(faults, target) {
			o.Links = append(o.Links, target)
		}
	}
	if lab.Targets(faults, lab.WorkerTarget) {
		worker, err := ownWorker()
		if err != nil {
			return nil, err
		}
		o.Worker = worker
	}
	a.note("starting a private Redis and a private PostgreSQL, to which will happen: %s", faultsText(faults))
	a.onPrivateRedis()
	l, err := wire.OpenLaboratory(ctx, a.cfg, a.getenv, o)
	if err != nil {
		return nil, err
	}
	return &mishaps{laboratory: l, faults: faults}, nil
}

func faultsText(faults []lab.Fault) (text string) {
	for i, f := range faults {
		if i > 0 {
			text += ", "
		}
		text += f.String()
	}
	return text
}

// ownWorker is the command of a worker as a process of its own. It is this program, as it was called.
func ownWorker() ([]string, error) {
	self, err := exec.LookPath(os.Args[0])
	if err == nil {
		self, err = filepath.Abs(self)
	}
	if err != nil {
		return nil, fault.Wrap(fault.Failed, err, "this program cannot be found, to be run once more as a worker").WithHint("call it by its whole path")
	}
	return []string{self, "worker", "--config", wire.WorkerConfig}, nil
}

// happen does what is to go wrong while users are there.
func (m *mishaps) happen(say func(string, ...any)) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		began := time.Now()
		done, err := m.laboratory.Rig.Schedule(ctx, m.faults, func(f lab.Fault) { say("now: %s", f) })
		for _, d := range done {
			m.done = append(m.done, simulate.Mishap(d))
			if f, err := lab.ParseFault(d.Fault); err == nil && f.Act == lab.FlushAct && d.Done { // until it is back, nobody sells
				m.flushes = append(m.flushes, flush{began.Add(d.At - aside), began.Add(d.At + d.Took + aside)})
			}
		}
		return err
	}
}

// recovered waits until the guardian has let every lot sell again. A worker that was started after Redis was emptied makes no
// lots anew, since it may be the wrong Redis: they are restored then, as an operator would. If a lot still sells nothing, the
// audit that follows says why. Whoever was there all the time has to make them anew without help.
func (m *mishaps) recovered(ctx context.Context, l *ledger.Ledger, s *stock.Stock, lots []drop.Definition, say func(string, ...any)) error {
	var ids []drop.LotID
	for _, l := range lots {
		ids = append(ids, l.Lot)
	}
	within, cancel := context.WithTimeout(ctx, reopenWithin)
	defer cancel()
	say("waiting until every lot sells again")
	began := time.Now()
	for operator := began.Add(operatorComes); ; {
		states, err := s.LotStates(within, ids)
		shut := slices.ContainsFunc(ids, func(id drop.LotID) bool { return !states[id].Sells() || states[id].Run == "" })
		if err == nil && !shut {
			say("recovered after %s", fault.Duration(time.Since(began).Round(time.Millisecond)))
			return nil
		}
		if err == nil && m.needOperator() && time.Now().After(operator) {
			restoreMissing(within, wire.Rebuilder(s, l), ids, states, say)
			operator = time.Now().Add(operatorComes)
		}
		if retry.Sleep(within, 50*time.Millisecond) != nil {
			return ctx.Err()
		}
	}
}

// needOperator reports whether the worker may never have seen the lots in Redis, since that was emptied before it could look.
func (m *mishaps) needOperator() bool {
	started := m.began
	if worker := m.laboratory.Rig.Worker; worker != nil {
		started = worker.Started()
	}
	return slices.ContainsFunc(m.flushes, func(f flush) bool { return started.Add(firstLook).After(f.from) })
}

// firstLook is the time after its start by which a worker has looked at Redis.
const firstLook = 2 * time.Second

// operatorComes is how long an emptied Redis is left to the worker.
const operatorComes = 10 * time.Second

// restoreMissing rebuilds the lots that Redis has not. What fails is tried again later.
func restoreMissing(ctx context.Context, r *recovery.Rebuilder, ids []drop.LotID, states map[drop.LotID]drop.LotState, say func(string, ...any)) {
	var restored []drop.LotID
	for _, id := range ids {
		if _, there := states[id]; there {
			continue
		}
		if _, err := r.Rebuild(ctx, id, "simulate", "Redis was emptied"); err == nil {
			restored = append(restored, id)
		}
	}
	if len(restored) > 0 && r.Record(ctx, restored) == nil {
		say("a worker that never saw these lots in Redis does not make them anew: restored %s, as dropctl restore --all does", drop.SomeLots(restored))
	}
}

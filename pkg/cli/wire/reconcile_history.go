package wire

import (
	"context"

	"github.com/dropctl/dropctl/pkg/ledger"
	"github.com/dropctl/dropctl/pkg/reconcile"
)

// ReconcileHistory is the account of runs and repairs in PostgreSQL.
func ReconcileHistory(l *ledger.Ledger) reconcile.Records { return reconcileRecords{l} }

type reconcileRecords struct{ *ledger.Ledger }

func (l reconcileRecords) Runs(ctx context.Context, limit int) ([]reconcile.PastRun, error) {
	runs, err := l.Ledger.Runs(ctx, limit)
	past := make([]reconcile.PastRun, len(runs))
	for i, r := range runs {
		past[i] = reconcile.PastRun(r)
	}
	return past, err
}

func (l reconcileRecords) RepairsOfRuns(ctx context.Context, runs []int64) ([]reconcile.PastRepair, error) {
	repairs, err := l.Ledger.RepairsOfRuns(ctx, runs)
	return pastRepairs(repairs), err
}

func (l reconcileRecords) RepairsOutsideRuns(ctx context.Context, limit int) ([]reconcile.PastRepair, error) {
	repairs, err := l.Ledger.RepairsOutsideRuns(ctx, limit)
	return pastRepairs(repairs), err
}

func pastRepairs(repairs []ledger.RepairRecord) []reconcile.PastRepair {
	past := make([]reconcile.PastRepair, len(repairs))
	for i, r := range repairs {
		past[i] = reconcile.PastRepair{Run: r.Run, Lot: r.Lot, What: r.What, Actor: r.Actor, Reason: r.Reason, Evidence: r.Evidence,
			Begun: r.Begun, Ended: r.Ended, Outcome: string(r.Outcome), Detail: r.Detail}
	}
	return past
}

package ledger

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/dropctl/dropctl/pkg/drop"
)

// Standings returns how far the ledger has come with these lots. One it does not know is absent.
func (l *Ledger) Standings(ctx context.Context, lots []drop.LotID) (map[drop.LotID]drop.Standing, error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	rows, err := l.pool.Query(ctx, `SELECT lot, epoch, seq, waiting > 0 OR stopped <> '' FROM lots WHERE lot = ANY($1)`, texts(lots))
	if err != nil {
		return nil, l.fail(err, "looking how far lots are recorded")
	}
	found := make(map[drop.LotID]drop.Standing, len(lots))
	var lot drop.LotID
	var st drop.Standing
	_, err = pgx.ForEachRow(rows, []any{&lot, &st.Epoch, &st.Seq, &st.Odd}, func() error { found[lot] = st; return nil })
	return found, l.fail(err, "looking how far lots are recorded")
}

// Missing returns those of the entries of which the ledger has not got everything, with exactly this content: in the
// journal, waiting, or as a dead letter.
func (l *Ledger) Missing(ctx context.Context, entries []drop.OutboxEntry) ([]drop.OutboxEntry, error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	var lots []string
	var epochs, seqs []int64
	var digests [][]byte
	contents := make([]content, len(entries))
	for i, entry := range entries {
		c := &contents[i]
		c.events, c.poison = entry.Decode()
		for _, ev := range c.events {
			lots, epochs, seqs = append(lots, string(ev.Lot)), append(epochs, ev.Epoch), append(seqs, ev.Seq)
		}
		for _, p := range c.poison {
			digest := poisonDigest(p)
			digests = append(digests, digest[:])
		}
	}
	known, err := readPlaces(ctx, l.pool, lots, epochs, seqs)
	if err != nil {
		return nil, l.fail(err, "looking for recorded events")
	}
	parked, err := l.parked(ctx, digests)
	if err != nil {
		return nil, l.fail(err, "looking for dead letters")
	}
	var missing []drop.OutboxEntry
	for i, entry := range entries {
		if !contents[i].within(known, parked) {
			missing = append(missing, entry)
		}
	}
	return missing, nil
}

// content is what an entry holds.
type content struct {
	events []drop.Event
	poison []drop.Poison
}

func (c content) within(known map[place][]knownEvent, parked map[string]bool) bool {
	for _, ev := range c.events {
		it := item{ev, ev.Line()}
		if !slices.ContainsFunc(known[placeOf(ev)], func(k knownEvent) bool { return k.same(it) }) {
			return false
		}
	}
	for _, p := range c.poison {
		if digest := poisonDigest(p); !parked[string(digest[:])] {
			return false
		}
	}
	return true
}

// parked returns which of these digests are dead letters, settled ones included.
func (l *Ledger) parked(ctx context.Context, digests [][]byte) (map[string]bool, error) {
	if len(digests) == 0 {
		return nil, nil
	}
	rows, err := l.pool.Query(ctx, `SELECT digest FROM dead_letters WHERE digest = ANY($1)`, digests)
	if err != nil {
		return nil, err
	}
	found := map[string]bool{}
	var digest []byte
	_, err = pgx.ForEachRow(rows, []any{&digest}, func() error { found[string(digest)] = true; return nil })
	return found, err
}

package stock

import (
	"context"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dropctl/dropctl/lua"
	"github.com/dropctl/dropctl/pkg/drop"
)

// manyUnfiled is what reserve.lua answers as detail when holds enough wait to be filed by lot. Grouping them takes Redis a
// while in which nobody can reserve, so the engine does it and Redis only stores the result.
const manyUnfiled = "unfiled"

// fewUnfiled is below how many holds they are left to gather: somebody has filed the rest, and an entry for each of a few costs what
// the list is there to save.
const fewUnfiled = 320

// fileSoon files what waits in the shard, unless that is going on. If it fails, the next batch is told again.
func (sh *shard) fileSoon() {
	if sh.filing.Swap(true) {
		return
	}
	sh.stock.lanes.Go(func() {
		defer sh.filing.Store(false)
		_ = sh.file(context.Background()) // the connection has time limits of its own
	})
}

// file reads what waits and files it by lot, unless somebody has meanwhile. What is damaged it leaves to the scripts.
func (sh *shard) file(ctx context.Context) error {
	node, err := sh.stock.server.node(ctx, sh.keys.meta)
	if err != nil {
		return err
	}
	elements, err := node.LRange(ctx, sh.keys.unfiled, 0, -1).Result()
	if err != nil {
		return err
	}
	args, holds := fileArgs(elements)
	if holds < fewUnfiled {
		return nil
	}
	_, err = sh.stock.script(ctx, sh, lua.File, sh.keys.gated(), args)
	return err
}

// fileArgs are the script's arguments for elements that were read, and how many holds these file: none if they are damaged.
func fileArgs(elements []string) (args []string, holds int) {
	entries, holds := fileByLot(elements)
	if holds == 0 {
		return nil, 0
	}
	last := len(elements) - 2
	args = append(args, strconv.Itoa(len(elements)), elements[0], elements[1], elements[last], elements[last+1])
	return append(args, entries...), holds
}

// fileByLot writes one due entry for each lot in the elements, at the earliest time of its holds, and a 0 before each, as file.lua reads
// them, and tells how many holds these are: none if the elements are not all what the scripts write.
func fileByLot(elements []string) (entries []string, holds int) {
	at := make(map[string]int64)
	attempts := make(map[string]*strings.Builder)
	pairs := 0
	for ms, lines := range pairsOf(elements) {
		pairs++
		for line := range strings.Lines(lines) {
			lot, attempt, sound := heldIn(line)
			if !sound || ms == 0 {
				return nil, 0
			}
			if attempts[lot] == nil {
				attempts[lot], at[lot] = &strings.Builder{}, ms
			}
			attempts[lot].WriteString(attempt)
			holds++
			at[lot] = min(at[lot], ms)
		}
	}
	if 2*pairs != len(elements) { // something was passed over
		return nil, 0
	}
	for lot, those := range attempts {
		entries = append(entries, "0", fmt.Sprintf("%s\t%013d\t\t%s", lot, at[lot], those))
	}
	return entries, holds
}

// pairsOf yields the times in the elements, in ms, and the lines behind each. What is neither is passed over, as by the scripts
// (read_unfiled).
func pairsOf(elements []string) iter.Seq2[int64, string] {
	return func(yield func(ms int64, lines string) bool) {
		before := int64(-1) // the time that the element before was, -1 if it was none
		for _, element := range elements {
			ms, err := strconv.ParseUint(element, 10, 63)
			if err == nil {
				before = int64(ms)
				continue
			}
			if before >= 0 && !yield(before, element) {
				return
			}
			before = -1
		}
	}
}

// heldIn returns the lot and the attempt of a line of what is unfiled, and whether it is as the scripts write it.
func heldIn(line string) (lot, attempt string, sound bool) {
	f := strings.Split(line, "\t")
	if len(f) != 5 || f[0] == "" || len(f[1]) != drop.AttemptLen || !strings.HasSuffix(line, "\n") {
		return "", "", false
	}
	return f[0], f[1], true
}

// unfiledOf hands what is unfiled of a lot to fn, if there is any.
func (s *Stock) unfiledOf(ctx context.Context, node *redis.Client, keys shardKeys, lot drop.LotID, fn func([]drop.DueEntry) error) error {
	elements, err := node.LRange(ctx, keys.unfiled, 0, -1).Result()
	if err != nil {
		return s.commandFault(keys.unfiled, err)
	}
	page := parseUnfiled(elements, lot)
	if len(page) == 0 {
		return nil
	}
	return fn(page)
}

// parseUnfiled reads what is of a lot. What is damaged is passed over.
func parseUnfiled(elements []string, lot drop.LotID) (page []drop.DueEntry) {
	for ms, lines := range pairsOf(elements) {
		e := drop.DueEntry{At: time.UnixMilli(ms).UTC()}
		for line := range strings.Lines(lines) {
			if of, attempt, sound := heldIn(line); sound && of == string(lot) {
				e.Attempts = append(e.Attempts, attempt)
			}
		}
		if len(e.Attempts) > 0 {
			page = append(page, e)
		}
	}
	return page
}

package stock

import (
	"math/bits"
	"strconv"
	"strings"

	"github.com/dropctl/dropctl/pkg/drop"
)

// MaxShards is the largest number of shards; up to it the tags keep the slots evenly spread.
const MaxShards = 1024

// shardKeys are the keys of one shard. All of them, and those of its lots, share a hash tag and so a slot.
type shardKeys struct {
	prefix, meta, outbox, next, due, wake, unfiled string
}

func keysOf(prefix string, shard int) shardKeys {
	p := prefix + ":{" + tag(shard) + "}:"
	return shardKeys{prefix: p, meta: p + "meta", outbox: p + "outbox", next: p + "next", due: p + "due", wake: p + "wake", unfiled: p + "unfiled"}
}

func (k shardKeys) lot(lot drop.LotID) string { return k.prefix + "lot:" + string(lot) }

// gated returns KEYS for a script: the shard's six, then the lots (see lua/common.lua).
func (k shardKeys) gated(lots ...drop.LotID) []string {
	keys := make([]string, 0, 6+len(lots))
	keys = append(keys, k.meta, k.outbox, k.next, k.due, k.wake, k.unfiled)
	for _, l := range lots {
		keys = append(keys, k.lot(l))
	}
	return keys
}

// staged are the keys of what is staged for a lot: its hash, and its due entries.
func (k shardKeys) staged(lot drop.LotID) []string {
	return []string{k.prefix + "stage:" + string(lot), k.prefix + "stage-due:" + string(lot)}
}

// staging returns KEYS for a script on one lot and what is staged for it.
func (k shardKeys) staging(lot drop.LotID) []string {
	return append(k.gated(lot), k.staged(lot)...)
}

// tag returns the shard's hash tag: `<shard>` or `<shard>.<k>`, k being the first for which the slot falls into
// the shard's place in bit-reversed order. So the slots of shards 0..P-1 spread evenly for every power of two P,
// and a shard's tag does not depend on P.
func tag(shard int) string {
	const places = MaxShards
	width := bits.Len(places - 1)
	want := bits.Reverse32(uint32(shard)) >> (32 - width)
	for k := 0; ; k++ {
		t := strconv.Itoa(shard)
		if k > 0 {
			t += "." + strconv.Itoa(k)
		}
		if uint32(slot(t))*places/slots == want {
			return t
		}
	}
}

const slots = 16384

// slot returns the Redis Cluster hash slot of a tag: CRC16 (XMODEM) modulo 16,384 (Redis Cluster specification).
func slot(tag string) uint16 {
	var crc uint16
	for i := 0; i < len(tag); i++ {
		crc ^= uint16(tag[i]) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return crc % slots
}

// lotOfKey returns the lot whose lot key this is, or "".
func lotOfKey(key string) drop.LotID {
	_, rest, ok := strings.Cut(key, "}:lot:")
	if !ok {
		return ""
	}
	lot, err := drop.ParseLotID(rest)
	if err != nil {
		return ""
	}
	return lot
}

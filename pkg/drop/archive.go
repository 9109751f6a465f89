package drop

import "github.com/dropctl/dropctl/pkg/fault"

// Archive says how far a lot has been put away.
type Archive string

// A lot that is put away goes from Redis first; journal and sales stay in the ledger for good.
const (
	NotArchived  Archive = ""
	ArchiveBegun Archive = "begun" // Redis may still have it, or have it no more
	Archived     Archive = "done"
)

// WhyAbsent is why Redis rightly has no such lot, by what the ledger knows of it: it was never made (nil), or is archived. It
// is nil where Redis should have it, also where an archive was begun of a lot that may sell again or still has holds.
func WhyAbsent(lot LotID, known *LedgerLot) error {
	switch {
	case known == nil:
		return fault.New(fault.NotFound, "there is no lot %s", lot).WithHint("list what there is: dropctl lot list")
	case known.Archive == Archived, known.Archive == ArchiveBegun && known.Status == Closed && known.Held == 0:
		return fault.New(fault.NotFound, "lot %s is archived: its sale is over for good", lot).WithHint("what was sold of it: dropctl reservation list --lot %s", lot)
	}
	return nil
}

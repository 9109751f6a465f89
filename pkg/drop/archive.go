package drop

// Archive says how far a lot has been put away.
type Archive string

// A lot that is put away goes from Redis first; journal and sales stay in the ledger for good.
const (
	NotArchived  Archive = ""
	ArchiveBegun Archive = "begun" // Redis may still have it, or have it no more
	Archived     Archive = "done"
)

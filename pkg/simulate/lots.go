package simulate

import _ "embed"

// LotsCSV are the sample lots of the rehearsal, in the form `dropctl seed -f` reads. Most holds are short,
// so that deadlines really pass while it runs; some lots are paused, closed or outside their window.
//
//go:embed lots.csv
var LotsCSV []byte

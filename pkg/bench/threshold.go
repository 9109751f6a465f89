package bench

// Threshold is a --fail-if and what it came to.
type Threshold struct {
	Expression string   `json:"expression" table:"FAIL IF"`
	Measured   *float64 `json:"measured"`               // seconds, percent or a plain number; null if there was nothing to measure
	Shown      string   `json:"shown" table:"MEASURED"` // the same for people
	OK         bool     `json:"ok" table:"OK"`          // it is not so; what was not measured is not OK
}

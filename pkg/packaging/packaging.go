// Package packaging holds what surrounds the program where it is installed: systemd units, a sample config file, alert
// rules and a dashboard. Packages take the files from this folder.
package packaging

import _ "embed"

// Rules are alert rules for Prometheus.
//
//go:embed rules.yaml
var Rules string

// Dashboard is a dashboard for Grafana.
//
//go:embed dashboard.json
var Dashboard string

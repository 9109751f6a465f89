// Package migrations embeds the PostgreSQL schema, one numbered file a step.
package migrations

import "embed"

// Files holds the steps, NNNNN_name.sql, each with its way up and its way down.
//
//go:embed *.sql
var Files embed.FS

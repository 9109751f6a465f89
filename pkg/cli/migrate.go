package cli

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/ledger"
)

func newMigrate(a *app) *cobra.Command {
	cmd := newGroup("migrate", "Set up PostgreSQL and keep its schema up to date", newMigrateUp(a), newMigrateDown(a), newMigrateStatus(a))
	cmd.Example = `  dropctl migrate status
  dropctl migrate up --app-role shop`
	return cmd
}

// migrationView is one step of the schema.
type migrationView struct {
	Version int64         `json:"version" table:"VERSION"`
	Name    string        `json:"name" table:"NAME,name"`
	State   string        `json:"state" table:"STATE"` // applied, reverted or pending; of a dry run: planned
	Applied time.Time     `json:"applied_at" table:"APPLIED"`
	Took    time.Duration `json:"duration_seconds" table:"TOOK,wide"` // of a step carried out just now
}

func viewMigrations(steps []ledger.MigrationStep, state string) []migrationView {
	views := make([]migrationView, len(steps))
	for i, s := range steps {
		views[i] = migrationView{s.Version, s.Name, state, s.AppliedAt, s.Duration}
	}
	return views
}

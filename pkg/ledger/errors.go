package ledger

import (
	"context"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dropctl/dropctl/pkg/fault"
)

// SQLSTATEs that decide what a caller can do.
const (
	stateLockTimeout = "55P03"
	stateNoRight     = "42501"
	stateNotUnique   = "23505"
	stateCheck       = "23514"
	stateOutOfRange  = "22003"
	classCredentials = "28"
)

// fail turns an error of the driver into one of ours; nil stays nil.
func (l *Ledger) fail(err error, doing string) error { return failure(l.target, err, doing) }

// failure says what was being done and where. The driver's own texts about connections are left out:
// they name users and settings.
func failure(target string, err error, doing string) error {
	if err == nil {
		return nil
	}
	if _, ours := errors.AsType[*fault.Error](err); ours || errors.Is(err, context.Canceled) {
		return err
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fault.New(fault.Unavailable, "PostgreSQL at %s did not answer in time (%s)", target, doing)
	}
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return fault.New(fault.Unavailable, "the connection to PostgreSQL at %s failed (%s): %s", target, doing, root(err))
	}
	switch {
	case isNotMigrated(pg.Code):
		return fault.New(fault.NotMigrated, "the database %s does not have the schema (%s): %s", target, doing, pg.Message)
	case pg.Code == stateNoRight:
		return fault.New(fault.Failed, "the database %s does not allow it (%s): %s", target, doing, pg.Message).
			WithHint("let the owner of the schema grant it: dropctl migrate up --app-role ROLE")
	case strings.HasPrefix(pg.Code, classCredentials):
		return fault.New(fault.Unavailable, "PostgreSQL at %s refuses the credentials", target).
			WithHint("check PGPASSFILE, --database-password-file, and the user in --database-url")
	case isPassing(pg.Code):
		return fault.New(fault.Unavailable, "PostgreSQL at %s did not carry it out (%s): %s (SQLSTATE %s)", target, doing, pg.Message, pg.Code)
	}
	return fault.New(fault.Failed, "PostgreSQL at %s refused (%s): %s (SQLSTATE %s)", target, doing, pg.Message, pg.Code)
}

// isPassing reports whether the same call may well succeed later: connections lost, limits reached, locks,
// deadlocks, shutdowns, a standby.
func isPassing(code string) bool {
	for _, class := range []string{"08", "53", "57", "40", "25", "3D", "55", "58"} {
		if strings.HasPrefix(code, class) {
			return true
		}
	}
	return false
}

// isNotMigrated covers a missing table, column, function and schema.
func isNotMigrated(code string) bool {
	return code == "42P01" || code == "42703" || code == "42883" || code == "3F000"
}

func hasState(err error, code string) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Code == code
}

// root returns the text of the innermost cause.
func root(err error) string {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			if many, ok := err.(interface{ Unwrap() []error }); ok && len(many.Unwrap()) > 0 {
				err = many.Unwrap()[0]
				continue
			}
			return strings.ReplaceAll(err.Error(), "\n", " ")
		}
		err = inner
	}
}

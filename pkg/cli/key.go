package cli

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/drop"
)

func newKey(a *app) *cobra.Command {
	cmd := newGroup("key", "Make, list and revoke keys of the HTTP API", newKeyCreate(a), newKeyList(a), newKeyRevoke(a))
	cmd.Example = `  dropctl key create --tenant shop --scope read,reserve,settle --name "web shop"
  dropctl key list
  dropctl key revoke k3bt7q2m`
	return cmd
}

// keyView is the contract of one key. As a list in JSON it is the file that a server reads, so its fields are those of
// drop.APIKey and nothing else.
type keyView struct {
	ID        string       `json:"id" table:"ID,name"`
	Tenant    string       `json:"tenant" table:"TENANT"`
	Name      string       `json:"name" table:"NAME"`
	Scopes    []drop.Scope `json:"scopes" table:"SCOPES"`
	Hash      drop.KeyHash `json:"hash"`
	Created   time.Time    `json:"created" table:"CREATED"`
	CreatedBy string       `json:"created_by" table:"CREATED BY,wide"`
	Expires   time.Time    `json:"expires" table:"EXPIRES"`
	Revoked   time.Time    `json:"revoked" table:"REVOKED"`
	RevokedBy string       `json:"revoked_by" table:"REVOKED BY,wide"`
}

// keyIDs offers the keys that can still be revoked for completion.
func (a *app) keyIDs(ctx context.Context, _ string) ([]candidate, error) {
	l, err := a.openLedger(ctx)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	keys, err := l.Keys(ctx)
	var list []candidate
	for _, k := range keys {
		if k.Revoked.IsZero() {
			list = append(list, candidate{k.ID, strings.TrimSpace(k.Tenant + " " + k.Name)})
		}
	}
	return list, err
}

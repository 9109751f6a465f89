package drop

import (
	"strings"
	"testing"

	"github.com/dropctl/dropctl/pkg/fault"
)

// That a sale is over for good is said only where nothing of the lot can come any more.
func TestWhyALotIsAbsent(t *testing.T) {
	lot := func(archive Archive, status Status, held int64) *LedgerLot {
		return &LedgerLot{Archive: archive, Definition: Definition{Status: status}, Held: held}
	}
	tests := map[string]struct {
		known *LedgerLot
		says  string // "": Redis should have it
	}{
		"never made":           {nil, "there is no lot hat"},
		"for sale":             {lot(NotArchived, Open, 0), ""},
		"closed":               {lot(NotArchived, Closed, 0), ""},
		"archive begun":        {lot(ArchiveBegun, Closed, 0), "over for good"},
		"begun, and open":      {lot(ArchiveBegun, Open, 0), ""},
		"begun, and has holds": {lot(ArchiveBegun, Closed, 1), ""},
		"archived":             {lot(Archived, Closed, 0), "over for good"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			why := WhyAbsent("hat", tt.known)
			if tt.says == "" && why != nil || tt.says != "" && (!fault.Is(why, fault.NotFound) || !strings.Contains(why.Error(), tt.says)) {
				t.Errorf("got %v", why)
			}
		})
	}
}

package api

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dropctl/dropctl/pkg/drop"
	"github.com/dropctl/dropctl/pkg/fault"
)

func TestAFileOfKeysIsTakenWholeOrNotAtAll(t *testing.T) {
	token, id := drop.NewToken()
	_, hash, _ := drop.ReadToken(token)
	line := `{"id":"` + id + `","tenant":"shop","name":"","scopes":["read"],"hash":"` + hash.String() + `","created":"2026-11-30T00:00:00Z","created_by":"x","expires":null,"revoked":null,"revoked_by":""}`
	path := filepath.Join(t.TempDir(), "keys.json")
	for text, ok := range map[string]bool{
		"[" + line + "]": true, "[]": true,
		"": false, "{}": false, line: false, "[" + line: false, "[" + line + "] x": false, "[" + line + "," + line + "]": false,
		"[" + strings.Replace(line, `"revoked":null`, `"revokd":"2026-11-30T00:00:00Z"`, 1) + "]": false,
		"[" + strings.Replace(line, `"expires":null`, `"expires":"tomorrow"`, 1) + "]":            false,
		"[" + strings.Replace(line, `["read"]`, `["root"]`, 1) + "]":                              false,
		"[" + strings.Replace(line, `["read"]`, `[]`, 1) + "]":                                    false,
		"[" + strings.Replace(line, `"shop"`, `""`, 1) + "]":                                      false,
		"[" + strings.Replace(line, hash.String(), token, 1) + "]":                                false,
		"[" + strings.Replace(line, hash.String(), "", 1) + "]":                                   false,
		strings.Repeat(" ", maxKeyFile+1):                                                         false,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		keys, err := readKeyFile(path)
		if ok != (err == nil) || !ok && (!fault.Is(err, fault.InvalidConfig) || keys != nil || strings.Contains(err.Error(), token[20:])) {
			t.Errorf("%.200s: %v", text, err)
		}
	}
	for _, odd := range []string{t.TempDir(), "/dev/zero", filepath.Join(t.TempDir(), "nothing")} {
		if _, err := readKeyFile(odd); !fault.Is(err, fault.InvalidConfig) || !strings.Contains(fault.HintOf(err), "dropctl key list -o json") {
			t.Errorf("%s: %v", odd, err)
		}
	}
}

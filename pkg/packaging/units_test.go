package packaging

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// unit reads a systemd unit: section.key → its values.
func unit(t *testing.T, name string) map[string][]string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("systemd", name))
	if err != nil {
		t.Fatal(err)
	}
	values := map[string][]string{}
	section := ""
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") {
			section = strings.Trim(line, "[]")
		} else if key, value, ok := strings.Cut(line, "="); ok && !strings.HasPrefix(line, "#") {
			values[section+"."+key] = append(values[section+"."+key], value)
		}
	}
	return values
}

func TestServicesAreLockedIn(t *testing.T) {
	for _, name := range []string{"dropctl-serve.service", "dropctl-worker.service", "dropctl-reconcile.service"} {
		u := unit(t, name)
		for key, want := range map[string]string{
			"DynamicUser": "yes", "ProtectSystem": "strict", "NoNewPrivileges": "yes", "CapabilityBoundingSet": "", "ProtectHome": "yes",
			"MemoryDenyWriteExecute": "yes", "UMask": "0077",
		} {
			if got := u["Service."+key]; len(got) != 1 || got[0] != want {
				t.Errorf("%s: %s is %q", name, key, got)
			}
		}
		exec := u["Service.ExecStart"][0]
		for _, secret := range []string{"redis-url", "database-url"} {
			if !slices.Contains(u["Service.LoadCredential"], secret+":/etc/dropctl/"+secret) || !strings.Contains(exec, "--"+secret+" file:${CREDENTIALS_DIRECTORY}/"+secret) {
				t.Errorf("%s does not hand over %s: %s", name, secret, exec)
			}
		}
	}
}

// TestAStopHasTheTimeItNeeds keeps systemd from killing what still ends in good order.
func TestAStopHasTheTimeItNeeds(t *testing.T) {
	cfg, err := resolve(t, "version: 1\n")
	if err != nil {
		t.Fatal(err)
	}
	for name, least := range map[string]time.Duration{"dropctl-serve.service": cfg.DrainLimit, "dropctl-worker.service": 30 * time.Second} {
		u := unit(t, name)
		limit, err := time.ParseDuration(u["Service.TimeoutStopSec"][0] + "s")
		if err != nil || limit < least+10*time.Second {
			t.Errorf("%s: it is killed after %s, and may need %s: %v", name, limit, least, err)
		}
		if u["Service.Restart"][0] != "on-failure" || u["Service.SuccessExitStatus"][0] != "143" || u["Unit.StartLimitIntervalSec"][0] != "0" {
			t.Errorf("%s does not come back, or calls a good stop a failure", name)
		}
	}
}

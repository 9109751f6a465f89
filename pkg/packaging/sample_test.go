package packaging

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/dropctl/dropctl/pkg/config"
)

// resolve reads a config file with nothing else around.
func resolve(t *testing.T, text string) (*config.Config, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "dropctl.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return config.Resolve(config.Sources{Getenv: func(string) string { return "" }, File: path})
}

// offered is a setting that is commented out.
var offered = regexp.MustCompile(`(?m)^#( *[a-z-]+:)`)

func TestTheSampleConfigHasEverySetting(t *testing.T) {
	data, err := os.ReadFile("dropctl.yaml")
	if err != nil {
		t.Fatal(err)
	}
	sample := string(data)
	asIs, err := resolve(t, sample)
	if err != nil {
		t.Fatal(err)
	}
	all, err := resolve(t, offered.ReplaceAllString(sample, "$1"))
	if err != nil {
		t.Fatalf("with every # taken away: %v", err)
	}
	for _, s := range config.Settings() {
		if !strings.HasPrefix(all.Origin(s.Name), "file ") {
			t.Errorf("dropctl.yaml does not show %s; add:\n\n# %s.\n#%s: %s", s.Name, s.Usage, s.Name, s.Default)
			continue
		}
		if s.Default != "" && all.Shown(s.Name) != asIs.Shown(s.Name) {
			t.Errorf("dropctl.yaml shows %v for %s, the default is %s", all.Shown(s.Name), s.Name, s.Default)
		}
		set := s.Name == "redis-url" || s.Name == "database-url"
		if set != strings.HasPrefix(asIs.Origin(s.Name), "file ") {
			t.Errorf("%s: dropctl.yaml sets more, or less, than where the stores are", s.Name)
		}
	}
	for _, s := range config.Attestations() {
		if _, there := all.Attested[s.Name]; !there {
			t.Errorf("dropctl.yaml does not show what may be attested as %s", s.Name)
		}
	}
}

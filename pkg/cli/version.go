package cli

import (
	"runtime"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"
)

// Set by the linker at release (-X); otherwise what the Go build noted is used.
var (
	buildVersion string
	buildCommit  string
	buildDate    string
)

type versionView struct {
	Version string     `json:"version" table:"VERSION,name"`
	Commit  string     `json:"commit" table:"COMMIT"`
	Date    *time.Time `json:"date" table:"DATE"` // of the commit; null if unknown
	Dirty   bool       `json:"dirty" table:"DIRTY"`
	Go      string     `json:"go" table:"GO"`
	OS      string     `json:"os" table:"OS"`
	Arch    string     `json:"arch" table:"ARCH"`
}

func newVersion(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Show the version of this binary",
		Example: `  dropctl version
  dropctl version -o json`,
		Annotations: needsNoConfig,
		RunE:        func(*cobra.Command, []string) error { return a.print(thisVersion()) },
	}
}

func thisVersion() versionView {
	v := versionView{Version: buildVersion, Commit: buildCommit, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	date := buildDate
	if info, ok := debug.ReadBuildInfo(); ok {
		if v.Version == "" {
			v.Version = info.Main.Version
		}
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision" && v.Commit == "":
				v.Commit = s.Value
			case s.Key == "vcs.time" && date == "":
				date = s.Value
			case s.Key == "vcs.modified":
				v.Dirty = s.Value == "true"
			}
		}
	}
	if v.Version == "" {
		v.Version = "(devel)"
	}
	if t, err := time.Parse(time.RFC3339, date); err == nil {
		v.Date = &t
	}
	return v
}

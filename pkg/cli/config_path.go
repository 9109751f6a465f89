package cli

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/config"
)

type configPathView struct {
	Path   string `json:"path" table:"PATH,name"`
	Exists bool   `json:"exists" table:"EXISTS"`
	Used   bool   `json:"used" table:"USED"`
}

func newConfigPath(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "path",
		Short: "Show which config file is read",
		Long:  "Show where a config file is looked for, best first, and which one is in force.",
		Example: `  dropctl config path
  dropctl config path --jq '.[] | select(.used) | .path'`,
		Annotations: needsNoConfig,
		RunE: func(*cobra.Command, []string) error {
			used, err := config.FindFile(config.Sources{Getenv: a.getenv, File: a.configFile})
			if err != nil {
				return err
			}
			places := config.SearchPath(a.getenv)
			if a.configFile != "" && a.configFile != "none" {
				places = append([]string{a.configFile}, places...)
			}
			list := []configPathView{}
			for _, path := range places {
				_, err := os.Stat(path)
				list = append(list, configPathView{path, err == nil, path == used})
			}
			return a.print(list)
		},
	}
}

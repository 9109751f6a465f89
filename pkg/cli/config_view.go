package cli

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/config"
	"github.com/dropctl/dropctl/pkg/fault"
)

// settingView is one setting in force. A secret is redacted, a reference to one is shown as it is.
type settingView struct {
	Setting string `json:"setting" table:"SETTING,name"`
	Value   any    `json:"value" table:"VALUE"`
	Origin  string `json:"origin" table:"ORIGIN,wide"`
}

// settingOriginView is the same with the origin among the columns.
type settingOriginView struct {
	Setting string `json:"setting" table:"SETTING,name"`
	Value   any    `json:"value" table:"VALUE"`
	Origin  string `json:"origin" table:"ORIGIN"`
}

func newConfigView(a *app) *cobra.Command {
	var origin bool
	cmd := &cobra.Command{
		Use:   "view",
		Short: "Show every setting in force",
		Long:  "Show every setting in force, secrets redacted, written as in the config file.",
		Example: `  dropctl config view
  dropctl config view --origin
  dropctl config view -o json --jq '.[] | select(.origin != "default")'`,
		RunE: func(*cobra.Command, []string) error {
			list := settingsInForce(a.cfg)
			if !origin {
				return a.print(list)
			}
			var withOrigin []settingOriginView
			for _, s := range list {
				withOrigin = append(withOrigin, settingOriginView(s))
			}
			return a.print(withOrigin)
		},
	}
	a.settings(cmd, cmd.Flags(), config.Redis, config.Database, config.API, config.Serving, config.Metrics, config.Stock, config.Durable, config.Work, config.Paying, config.Lag, config.First)
	cmd.Flags().BoolVar(&origin, "origin", false, "show where each value comes from")
	return cmd
}

func settingsInForce(cfg *config.Config) []settingView {
	var list []settingView
	for _, name := range cfg.Listed() {
		value := cfg.Shown(name)
		if d, ok := value.(time.Duration); ok {
			value = fault.Duration(d)
		}
		list = append(list, settingView{name, value, cfg.Origin(name)})
	}
	return list
}

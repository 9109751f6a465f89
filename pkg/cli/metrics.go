package cli

import (
	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/packaging"
	"github.com/dropctl/dropctl/pkg/telemetry"
)

func newMetrics(a *app) *cobra.Command {
	cmd := newGroup("metrics", "Describe what dropctl shows to Prometheus", newMetricsList(a), newMetricsRules(a), newMetricsDashboard(a))
	cmd.Long = "Describe the metrics that dropctl shows to Prometheus, with alert rules and a dashboard for them.\n" +
		"serve shows them at /metrics: once there are keys, to one with the scope read. A worker shows them\n" +
		"at --listen, to anybody."
	cmd.Example = `  dropctl metrics list
  dropctl metrics rules > /etc/prometheus/rules/dropctl.yaml
  dropctl metrics dashboard > dropctl.json`
	return cmd
}

func newMetricsList(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List every metric, its type, labels and meaning",
		Long: `List every metric with its type, its labels and what it means. Names, types and labels are a
contract: they change only with a new major version.

  engine  the traffic with Redis; of each process that reserves and settles
  api     the HTTP API; of serve
  worker  what runs behind the sale; of a worker
  drop    the whole installation, read from both stores every 5 seconds; of serve and of a worker,
          the same whoever is asked: take the greatest of all`,
		Example: `  dropctl metrics list
  dropctl metrics list -o json --jq '.[] | select(.group == "drop") | .name'`,
		Annotations: needsNoConfig,
		RunE:        func(*cobra.Command, []string) error { return a.print(telemetry.Contract()) },
	}
}

// fileView is a file that comes with the program.
type fileView struct {
	File string `json:"file" table:"FILE,name"`
	Text string `json:"text" table:"TEXT"`
}

func newMetricsRules(a *app) *cobra.Command {
	return &cobra.Command{
		Use:         "rules",
		Short:       "Print alert rules for Prometheus",
		Long:        "Print alert rules for Prometheus, a file for its rule_files. Each alert names the next command.",
		Example:     `  dropctl metrics rules > /etc/prometheus/rules/dropctl.yaml`,
		Annotations: needsNoConfig,
		RunE: func(*cobra.Command, []string) error {
			return a.out.Text(packaging.Rules, fileView{"dropctl-rules.yaml", packaging.Rules})
		},
	}
}

func newMetricsDashboard(a *app) *cobra.Command {
	return &cobra.Command{
		Use:         "dashboard",
		Short:       "Print a dashboard for Grafana",
		Long:        "Print a dashboard for Grafana, to be imported there; it asks for the Prometheus to read from.",
		Example:     `  dropctl metrics dashboard > dropctl.json`,
		Annotations: needsNoConfig,
		RunE: func(*cobra.Command, []string) error {
			return a.out.Text(packaging.Dashboard, fileView{"dropctl-dashboard.json", packaging.Dashboard})
		},
	}
}

package cli

import (
	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/fault"
)

type explainView struct {
	Code    fault.Code `json:"code" table:"CODE,name"`
	Kind    string     `json:"kind" table:"KIND"`
	Exit    fault.Exit `json:"exit" table:"EXIT"`
	HTTP    *int       `json:"http" table:"HTTP,wide"` // null: never an HTTP answer
	Title   string     `json:"title" table:"TITLE"`
	Meaning string     `json:"meaning" table:"MEANS,wide"`
	Risk    string     `json:"risk" table:"RISK TO BUYERS,wide"`
	Hint    string     `json:"hint" table:"WHAT TO DO,wide"`
}

func newExplain(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "explain [CODE]",
		Short: "Explain an error code, a verdict or a reason",
		Long: `Explain a code: what it means, the risk to buyers, what to do. Without a code, list them all.

Codes are the words in brackets behind an error, the verdicts of reconcile, and the reasons why a
shard is frozen, why the ledger has stopped a lot, and why a payment is due for refund.`,
		Example: `  dropctl explain sold_out
  dropctl explain drift
  dropctl explain -o wide`,
		Annotations:       needsNoConfig,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: firstOnly(completeCodes),
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return a.print(explainAll())
			}
			return explainOne(a, fault.Code(args[0]))
		},
	}
}

func explainAll() []explainView {
	var list []explainView
	for _, e := range fault.All() {
		list = append(list, viewCode(e))
	}
	return list
}

func viewCode(e fault.Entry) explainView {
	v := explainView{e.Code, e.Kind, e.Exit, &e.HTTP, e.Title, e.Meaning, e.Risk, e.Hint}
	if e.HTTP == 0 {
		v.HTTP = nil
	}
	return v
}

func explainOne(a *app, code fault.Code) error {
	if fault.Known(code) {
		return a.print(viewCode(fault.Lookup(code)))
	}
	err := fault.New(fault.NotFound, "there is no code %q", string(code))
	var names []string
	for _, e := range fault.All() {
		names = append(names, string(e.Code))
	}
	if near := fault.Nearest(string(code), names); near != "" {
		return err.WithHint("did you mean dropctl explain %s?", near)
	}
	return err.WithHint("list them all: dropctl explain")
}

func completeCodes(_ *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	var list []candidate
	for _, e := range fault.All() {
		list = append(list, candidate{string(e.Code), e.Title})
	}
	return offer(list, args, prefix), cobra.ShellCompDirectiveNoFileComp
}

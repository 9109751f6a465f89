package cli

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/fault"
)

var shells = []string{"bash", "zsh", "fish", "powershell"}

func newCompletion(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "completion SHELL",
		Short: "Print the completion script of a shell",
		Long: `Print the completion script of a shell: bash, zsh, fish or powershell.

Write it to a file once; a shell that runs dropctl at every start opens slower.

  bash        mkdir -p ~/.local/share/bash-completion/completions
              dropctl completion bash > ~/.local/share/bash-completion/completions/dropctl
              (needs the package bash-completion)
  zsh         dropctl completion zsh > "${fpath[1]}/_dropctl"
              (a folder of $fpath that you may write to, before
              "autoload -U compinit; compinit" in ~/.zshrc)
  fish        mkdir -p ~/.config/fish/completions
              dropctl completion fish > ~/.config/fish/completions/dropctl.fish
  powershell  dropctl completion powershell >> $PROFILE

Packages of dropctl install these files themselves.`,
		Example: `  dropctl completion bash > ~/.local/share/bash-completion/completions/dropctl
  dropctl completion zsh > "${fpath[1]}/_dropctl"
  dropctl completion fish > ~/.config/fish/completions/dropctl.fish`,
		Annotations:       needsNoConfig,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: firstOnly(completeWords(shells...)),
		RunE: func(cmd *cobra.Command, args []string) error {
			script, err := completionScript(cmd.Root(), args[0])
			if err != nil {
				return err
			}
			return a.out.Text(script, completionView{args[0], script})
		},
	}
}

type completionView struct {
	Shell  string `json:"shell" table:"SHELL,name"`
	Script string `json:"script" table:"SCRIPT"`
}

func completionScript(root *cobra.Command, shell string) (string, error) {
	var b strings.Builder
	var err error
	switch shell {
	case "bash":
		if err = root.GenBashCompletionV2(&b, true); err == nil {
			return withoutPackage(b.String()), nil
		}
	case "zsh":
		err = root.GenZshCompletion(&b)
	case "fish":
		err = root.GenFishCompletion(&b, true)
	case "powershell":
		err = root.GenPowerShellCompletionWithDesc(&b)
	default:
		hint := "use one of: " + strings.Join(shells, ", ")
		if near := fault.Nearest(shell, shells); near != "" {
			hint = "did you mean dropctl completion " + near + "? else " + hint
		}
		return "", fault.New(fault.Usage, "no completion for the shell %q", shell).WithHint("%s", hint)
	}
	return b.String(), err
}

// withoutPackage makes the script of bash keep quiet where the package is missing whose functions it calls.
func withoutPackage(script string) string {
	const start = "__start_dropctl()\n{\n"
	return strings.Replace(script, start, start+"    declare -F _get_comp_words_by_ref >/dev/null 2>&1 || return 0\n", 1)
}

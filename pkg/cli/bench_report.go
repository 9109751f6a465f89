package cli

import (
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/dropctl/dropctl/pkg/bench/report"
	"github.com/dropctl/dropctl/pkg/fault"
)

func newBenchReport(a *app) *cobra.Command {
	var svg string
	cmd := &cobra.Command{
		Use:   "report FILE…",
		Short: "Show measurements side by side, and draw them",
		Long: `Show what bench engine, http and compare wrote with -o json or -o jsonl, several files side by side;
a - is stdin. Runs that asked the same of the same target are shown together as well, with the
percentiles of all their answers (and not the means of percentiles, which mean nothing).

With --svg FILE all of it is drawn: latency second by second, percentiles up to the rarest, and for
a comparison what each model did. The drawing is one file that needs nothing else, for a browser
in light or dark, or a screen reader.`,
		Example: `  dropctl bench report monday.json tuesday.json --svg week.svg
  dropctl bench report run.json -o json --jq '.runs[] | .accept_p99_seconds'`,
		Args:        cobra.MinimumNArgs(1),
		Annotations: needsNoConfig,
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return []string{"json", "jsonl"}, cobra.ShellCompDirectiveFilterFileExt
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var r report.Report
			_, err := interruptible(cmd.Context(), func() (none struct{}, err error) { return none, a.readResults(&r, args) })
			if err != nil {
				return err
			}
			r.Sum()
			if svg != "" {
				if err := drawTo(svg, r); err != nil {
					return err
				}
				r.SVG = svg
			}
			return a.print(r)
		},
	}
	cmd.Flags().StringVar(&svg, "svg", "", "draw to this file, too; what it was before is replaced")
	_ = cmd.MarkFlagFilename("svg", "svg")
	return cmd
}

// readResults reads them all before anything is shown.
func (a *app) readResults(r *report.Report, files []string) error {
	for _, name := range files {
		if name == "-" {
			if err := r.Read("stdin", a.in); err != nil {
				return err
			}
			continue
		}
		file, err := os.Open(name)
		if err != nil {
			return fault.Wrap(fault.Usage, err, "the file cannot be read").WithHint("check the path and who may read it")
		}
		err = r.Read(name, file)
		_ = file.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// drawTo writes the drawing beside its place and moves it there, so that nobody ever sees half of one.
func drawTo(path string, r report.Report) (err error) {
	defer func() {
		if err != nil {
			err = fault.Wrap(fault.Failed, err, "the drawing could not be written").WithField("svg").WithHint("check the folder and who may write to it")
		}
	}()
	file, err := os.CreateTemp(filepath.Dir(path), ".dropctl-*.svg")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(file.Name()) }() // once it has moved there is nothing
	return moveTo(path, file, r.Draw)
}

// moveTo writes a file, and lets it appear under its name when it is whole.
func moveTo(path string, file *os.File, write func(io.Writer) error) error {
	if err := write(file); err != nil {
		_ = file.Close()
		return err
	}
	if err := file.Chmod(0o644); err != nil { // a drawing is no secret
		_ = file.Close()
		return err
	}
	if err := file.Close(); err != nil {
		return err
	}
	return os.Rename(file.Name(), path)
}

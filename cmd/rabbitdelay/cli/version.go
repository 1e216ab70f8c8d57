package cli

import (
	"cmp"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/cmd/internal/program"
)

// version is set by the linker for releases: -X …/cli.version=v1.2.3.
var version string

// build is what the binary knows about itself.
type build struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func readBuild() build {
	b := build{Version: version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if ok {
		b.Version = cmp.Or(b.Version, info.Main.Version)
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				b.Revision = s.Value
			case "vcs.modified":
				b.Modified = s.Value == "true"
			}
		}
	}
	b.Version = cmp.Or(b.Version, "(devel)")
	return b
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  program.NoArgs,
		Example: `  rabbitdelay version --json
  rabbitdelay --version`,
		RunE: func(*cobra.Command, []string) error { return a.printVersion() },
	}
}

func (a *app) printVersion() error {
	b := readBuild()
	if a.JSON {
		return a.PrintJSON(b)
	}
	a.Printf("rabbitdelay %s", b.Version)
	if len(b.Revision) >= 12 {
		a.Printf(" (%s)", b.Revision[:12])
	}
	a.Printf(", %s, %s\n", b.Go, b.Platform)
	return nil
}

package cli

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
)

// helpWidth is the maximum width of a help text, in columns.
const helpWidth = 80

// usage is cobra's own template, except for shorter headings and wrapped descriptions of flags.
var usage = strings.ReplaceAll(`Usage:{{if .Runnable}}
  {{.UseLine}}{{end}}{{if .HasAvailableSubCommands}}
  {{.CommandPath}} [command]{{end}}{{if .HasExample}}

Examples:
{{.Example}}{{end}}{{if .HasAvailableSubCommands}}{{$commands := .Commands}}{{if not .Groups}}

Commands:{{range $commands}}{{if .IsAvailableCommand}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}{{end}}{{range $group := .Groups}}

{{.Title}}{{range $commands}}{{if and (eq .GroupID $group.ID) .IsAvailableCommand}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}{{end}}{{end}}{{if .HasAvailableLocalFlags}}

Flags:
{{.LocalFlags.FlagUsagesWrapped WIDTH | trimTrailingWhitespaces}}{{end}}{{if .HasAvailableInheritedFlags}}

Global Flags:
{{.InheritedFlags.FlagUsagesWrapped WIDTH | trimTrailingWhitespaces}}{{end}}{{if .HasAvailableSubCommands}}

"{{.CommandPath}} COMMAND --help" shows the help of a command.{{end}}
`, "WIDTH", strconv.Itoa(helpWidth))

// shortHelp makes --help short. The last line of a help text names the command's reference page, which has the details.
func shortHelp(root *cobra.Command) {
	root.SetUsageTemplate(usage)
	help := root.HelpFunc()
	root.SetHelpFunc(func(c *cobra.Command, args []string) {
		help(c, args)
		if documented(c) {
			_, _ = fmt.Fprintf(c.OutOrStdout(), "\nMore: docs/commands/%s in the repository\n", pageName(c)) // the program checks its output at the end
		}
	})
}

// documented reports whether a command has a reference page. All commands have one except cobra's own, which do not
// belong to a group.
func documented(c *cobra.Command) bool {
	for ; c.HasParent(); c = c.Parent() {
		if !c.Parent().HasParent() {
			return c.GroupID != ""
		}
	}
	return true
}

// pageName returns the name of a command's reference page in docs/commands. The page of rabbitdelay itself is
// README.md, because code hosting sites show that file with the directory.
func pageName(c *cobra.Command) string {
	if !c.HasParent() {
		return "README.md"
	}
	return fileName(c) + ".md"
}

// fileName returns the path of a command, such as rabbitdelay_tasks_list.
func fileName(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "_") }

// Package cli implements the command rabbitdelay, which can be called in-process. It has the root command with the
// global flags and the table of exit codes, and the commands settings and version. The other commands are in
// neighboring packages, grouped by purpose: messages, tasks, schedules, layout, serve and plugin.
package cli

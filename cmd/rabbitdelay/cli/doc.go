// Package cli is the command rabbitdelay, callable in-process: its root with the flags of all commands and
// the table of exit codes, settings and version. The other commands stand in the packages beside it, by act:
// messages, tasks, schedules, layout, serve, plugin.
package cli

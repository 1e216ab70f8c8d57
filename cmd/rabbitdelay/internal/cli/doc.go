// Package cli implements the command rabbitdelay, which can be called in-process. It has the root command with the
// global flags, and the commands settings and version. The other commands are in neighboring packages, grouped by
// purpose: messages, tasks, schedules, layout, serve and plugin.
//
// The help of a command is short: what it does in two sentences, and three examples at most. Its details are in the
// folder reference of its package, one file for each command. TestReference writes both to docs/commands.
package cli

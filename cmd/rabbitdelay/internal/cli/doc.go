// Package cli implements the command rabbitdelay, which can be called in-process. It contains the root command with the
// global flags, and the commands settings and version. The other commands are in neighbouring packages, grouped by
// purpose: messages, tasks, schedules, layout, serve and plugin.
//
// The help of a command is short: what it does in two sentences, and at most three examples. The details are in its
// package's folder reference, one file for each command. TestReference writes both to docs/commands.
package cli

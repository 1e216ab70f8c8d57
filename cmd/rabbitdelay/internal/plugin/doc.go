// Package plugin implements the commands for migrating away from the x-delayed-message plugin: plugin status, plugin
// drain, and bridge, which replaces one of its exchanges.
//
//	plugin.go  the group of commands, and the status command: shows what still depends on the plugin
//	survey.go  the delayed exchanges of a virtual host, with their waiting messages and bindings
//	drain.go   the drain command: counts the waiting messages, asks, moves them into delay queues and reports
//	bridge.go  the bridge command
package plugin

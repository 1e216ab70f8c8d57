// Package plugin has the commands for migrating away from the x-delayed-message plugin: plugin status, plugin drain,
// and bridge, which replaces one of its exchanges.
//
//	plugin.go  the group of commands; status: what still depends on the plugin
//	drain.go   move its messages into delay queues: count, ask, do, tell
//	bridge.go  bridge
package plugin

// Package drain moves what waits in the x-delayed-message plugin into the delay queues
// of a client. The plugin's table is read and changed through the broker's own shell,
// which the caller provides.
package drain

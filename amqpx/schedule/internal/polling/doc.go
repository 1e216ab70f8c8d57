// Package polling decides when the loops of Run run again. It provides their pauses, the signals that wake them, and their
// clock. It knows nothing about tables or messages.
//
//	poller.go   pauses, and a loop that does something at an interval
//	wake.go   which loops run on a database, and waking them
//	clock.go  this process's clock, corrected by the database's
//	pool.go   detecting that a database's pool has too few connections
package polling

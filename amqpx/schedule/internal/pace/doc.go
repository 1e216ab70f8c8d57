// Package pace has when the loops of Run go on: their pauses, what wakes them, and the
// clock that they go by. It knows no table and no message.
//
//	pace.go   pauses, and a loop that does something at an interval
//	wake.go   which loops run on a database, and waking them
//	clock.go  this process's clock, corrected by the database's
package pace

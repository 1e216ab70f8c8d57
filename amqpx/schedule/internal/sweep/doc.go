// Package sweep decides what is sent again and when, and ends what has been left behind:
// leases of dead processes and rows without an instant. It claims and sends by the relay,
// and knows nothing of how that is done.
//
//	sweep.go     the sweep of all destinations, and of one
//	evidence.go  what says that messages are lost, and how many are tried; pure
package sweep

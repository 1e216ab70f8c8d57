// Package flow decides who may publish when on one connection, publishes, and follows each
// message to its confirm. It decides what comes after a try.
//
// It knows channels, confirms and returns. It knows neither what a message is for nor what
// a destination is: a Way is a key to it.
//
//   - window.go: how many messages may be unconfirmed, in all and in one queue
//   - publisher.go: publishes on the channel that suits a message, and reads the answer
//   - channel.go: a channel in confirm mode
//   - next.go: the pure step from an outcome to what follows; testdata/next.txt has its cases
package flow

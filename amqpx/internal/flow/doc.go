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
//
// Why it is built so:
//
//   - A queue that stops confirming holds up its own messages only: it has at most half of the
//     window, which is written off after a second without a confirm, and then it gets one message
//     a second.
//   - A refusal closes the channel, with all that is unconfirmed there. So a way is first tried on
//     a channel of its own, and moves to the shared one when a message was confirmed and none is
//     left, which keeps the order. If the broker's text names the exchange, its messages fail and
//     the others are published again; if not, each is published once more alone, and the one
//     refused there is the culprit.
//   - What was written before the connection ended, or before a right was revoked, is unknown: it
//     is sent again under its id until the caller's deadline. A nack, a closed channel or a return
//     is a refusal; after a nack of what went straight to an exchange another queue may have it,
//     so that is unknown too.
//   - A return precedes the confirm of its message, and whoever receives a confirm drains the
//     returns first. An unroutable message is never reported as sent.
package flow

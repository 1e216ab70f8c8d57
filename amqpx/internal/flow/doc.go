// Package flow decides when each message may be published on one connection, publishes messages, tracks each one until
// its confirm, and decides what to do after each attempt.
//
// It knows about channels, confirms and returns, but nothing about the purpose of a message or about destinations. A
// Route identifies a destination and the exchange through which it is reached.
//
//   - window.go: how many messages may be unconfirmed, in total and for each queue
//   - publisher.go: chooses the channel for a message, publishes the message, and interprets the answer
//   - channel.go: a channel in confirm mode
//   - next.go: a pure function from an outcome to the next step; testdata/next.txt has its cases
//
// Reasons for the design:
//
//   - A queue that stops confirming delays only its own messages. It can occupy at most half of the window. After a
//     second without a confirm, its share no longer counts, and from then on only one message a second may be published
//     to it.
//   - A refusal closes the channel, with all unconfirmed messages on it. A route is therefore first tried on a separate
//     channel. It moves to the shared channel when one of its messages has been confirmed and no others are
//     unconfirmed, which preserves the order. If the broker's text names the exchange, that exchange's messages fail
//     and the others are published again. If it does not, each message is published once more on a separate channel,
//     and the one that is refused there is the cause.
//   - The outcome of messages that were written before the connection was lost, or before a permission was revoked, is
//     unknown. They are sent again with the same id until the caller's deadline. A nack, a closed channel or a return
//     is a refusal. If a message that was published directly to an exchange is nacked, another queue may have accepted
//     it, so the outcome of that message is unknown too.
//   - A return precedes the confirm of its message, and the receiver of a confirm drains the returns first. An
//     unroutable message is never reported as sent.
package flow

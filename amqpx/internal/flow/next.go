package flow

import (
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// The broker's reasons for not accepting a message.
var (
	ErrUnroutable = errors.New("unroutable")
	ErrNacked     = errors.New("refused by the broker")
)

// Outcome is the result of one attempt to publish a message.
type Outcome struct {
	Kind Kind
	Err  error // why it was not confirmed
	Code int   // for Refused and Disturbed: AMQP's reply code

	alone   bool   // the message had its channel to itself
	suspect bool   // for Disturbed and Lost: this message may be the cause
	doubt   string // for Disturbed: the broker's text if it does not name the message that it refused
	stands  bool   // for Refused: refusals on this route have lasted for at least refusedFor
}

// Kind says how an attempt ended.
type Kind int

// The kinds of outcomes.
const (
	Confirmed  Kind = iota
	Impossible      // nothing was written, and another attempt would fail as well
	Unwritten       // nothing was written, but another attempt may succeed
	Nacked          // basic.nack
	Returned        // basic.return: the broker has no queue for the message
	Refused         // the broker closed the channel because of this message
	Disturbed       // the broker closed the channel, perhaps because of another message
	Lost            // the connection was lost before the confirm
	Expired         // the caller's deadline passed before the confirm
)

// Tries is the history of a message's attempts. The zero value is for a message that has not been tried.
type Tries struct {
	Count   int   // number of times that the message was written
	Unknown bool  // the broker may have accepted the message
	Alone   bool  // the message gets a channel to itself
	Returns int   // number of times that the broker had no queue or no exchange for the message
	Last    error // why the last try failed

	doubt   string // the broker closed the channel with this text while the message was unconfirmed
	refusal bool   // access was refused once before
	broken  int    // number of connections that the broker closed while the message was alone on its channel
}

// MaybeTaken reports whether the broker may have accepted the message in one of the attempts.
func (t Tries) MaybeTaken() bool { return t.Unknown || t.doubt != "" }

// Step is what to do after an attempt.
type Step struct {
	Do    Act
	Err   error         // for GiveUp: the reason
	Pause time.Duration // before Publish and Declare; 0 means the usual back-off
}

// Act is the action of a Step.
type Act int

// The actions of a Step.
const (
	Publish Act = iota // publish again
	Declare            // declare what the message needs, and publish again
	Finish             // the message is confirmed
	GiveUp
)

// MaxUnroutable is the number of times that a message may be unroutable or find no exchange before the error is final.
// Before each further attempt, everything is declared again.
const MaxUnroutable = 3

// maxBroken is the number of connections that the broker may close, while a message is alone on its channel, before the
// message is assumed to be the cause.
const maxBroken = 2

// Next decides what to do after an attempt. All such decisions are made here, for single messages and for batches.
func (t Tries) Next(o Outcome) (Tries, Step) {
	if o.Kind == Confirmed || o.Kind > Unwritten {
		t.Count++
	}
	before := t.Last
	t.Last = o.Err
	switch o.Kind {
	case Confirmed:
		return t, Step{Do: Finish}
	case Impossible:
		t.Unknown = t.MaybeTaken()
		return t, Step{Do: GiveUp, Err: Because(o.Err, before)}
	case Expired:
		t.Unknown = true
		return t, Step{Do: GiveUp, Err: Because(o.Err, before)}
	case Returned:
		t.Returns++
		return t, t.unroutable(o.Err)
	case Refused:
		return t.afterRefusal(o)
	case Disturbed:
		t.Alone = t.Alone || o.suspect
		if o.doubt == "" || t.doubt != "" && t.doubt != o.doubt {
			t.Unknown = true
		} else {
			t.doubt = o.doubt
		}
	case Lost:
		t.Unknown = true
		t.Alone = t.Alone || o.suspect
		if o.suspect && o.alone {
			if t.broken++; t.broken == maxBroken {
				return t, Step{Do: GiveUp, Err: fmt.Errorf("the broker closes the connection because of this message: %w", o.Err)}
			}
		}
	case Nacked, Unwritten:
	}
	return t, Step{}
}

// afterRefusal decides what Next returns after the broker has closed the channel because of the message.
func (t Tries) afterRefusal(o Outcome) (Tries, Step) {
	if ae, ok := errors.AsType[*amqp.Error](o.Err); t.doubt != "" && (!ok || ae.Reason != t.doubt) {
		t.Unknown = true // another message caused the broker to close the earlier channel
	}
	t.doubt = ""
	switch {
	case o.Code == amqp.NotFound: // the exchange has been deleted
		t.Returns++
		return t, t.unroutable(o.Err)
	case o.Code == amqp.AccessRefused && !o.stands && !t.refusal:
		t.refusal, t.Alone = true, true
		return t, Step{Pause: refusedFor}
	}
	return t, Step{Do: GiveUp, Err: o.Err}
}

// unroutable returns the step after a delay queue or an exchange was not found.
func (t Tries) unroutable(err error) Step {
	if t.Returns >= MaxUnroutable {
		return Step{Do: GiveUp, Err: err}
	}
	return Step{Do: Declare}
}

// Because returns err with the error of the previous attempt added, unless last is nil or err already wraps it.
func Because(err, last error) error {
	if last == nil || errors.Is(err, last) {
		return err
	}
	return fmt.Errorf("%w; previous attempt: %w", err, last)
}

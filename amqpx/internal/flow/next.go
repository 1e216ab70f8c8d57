package flow

import (
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// What the broker says about a message that it does not take.
var (
	ErrUnroutable = errors.New("unroutable")
	ErrNacked     = errors.New("refused by the broker")
)

// Outcome is what became of one try to publish a message.
type Outcome struct {
	Kind Kind
	Err  error // why it is not confirmed
	Code int   // of Refused and Disturbed: AMQP's reply code

	alone   bool   // the message had its channel to itself
	suspect bool   // of Disturbed and Lost: this message may be the reason
	doubt   string // of Disturbed: the broker's text, when it does not say which message it means
	stands  bool   // of Refused: access to this exchange has been refused for a while
}

// Kind distinguishes outcomes.
type Kind int

// Kinds of outcomes.
const (
	Confirmed  Kind = iota
	Impossible      // nothing was written, and nothing ever will be
	Unwritten       // nothing was written, this time
	Nacked          // basic.nack
	Returned        // basic.return: the broker has no queue for it
	Refused         // the broker closed the channel because of this message
	Disturbed       // the broker closed the channel, perhaps because of another message
	Lost            // the connection ended before the confirm
	Expired         // the caller's time was over before the confirm
)

// Tries is what a message has been through. The zero value is that of a message that was
// never tried.
type Tries struct {
	Count   int   // how often it was written
	Unknown bool  // it may have been taken
	Alone   bool  // it gets a channel to itself
	Returns int   // how often the broker had no queue or no exchange for it
	Last    error // why the last try failed

	doubt   string // it was unconfirmed when the broker closed the channel with this text
	refusal bool   // it was refused access once
	broken  int    // connections that ended while it was alone
}

// MaybeTaken reports whether the broker may have taken the message in one of the tries.
func (t Tries) MaybeTaken() bool { return t.Unknown || t.doubt != "" }

// Step is what to do after a try.
type Step struct {
	Do    Act
	Err   error         // of GiveUp: why
	Pause time.Duration // before Publish and Declare; 0: the usual back-off
}

// Act is what to do.
type Act int

// Acts.
const (
	Publish Act = iota // again
	Declare            // what the message needs, and publish again
	Finish             // the message is confirmed
	GiveUp
)

// MaxUnroutable is how often a message may find no queue or no exchange, with
// everything declared again in between, before the error is final.
const MaxUnroutable = 3

// maxBroken is how many connections may end while a message is alone on its
// channel before it counts as the reason.
const maxBroken = 2

// Next decides what follows a try. It is the only place that does, for one message and
// for many alike.
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
				return t, Step{Do: GiveUp, Err: fmt.Errorf("the broker ends the connection because of this message: %w", o.Err)}
			}
		}
	case Nacked, Unwritten:
	}
	return t, Step{}
}

// afterRefusal is Next after the broker has closed the channel because of the message.
func (t Tries) afterRefusal(o Outcome) (Tries, Step) {
	if ae, ok := errors.AsType[*amqp.Error](o.Err); t.doubt != "" && (!ok || ae.Reason != t.doubt) {
		t.Unknown = true // that time it was another message's doing
	}
	t.doubt = ""
	switch {
	case o.Code == amqp.NotFound: // the exchange: somebody has deleted it
		t.Returns++
		return t, t.unroutable(o.Err)
	case o.Code == amqp.AccessRefused && !o.stands && !t.refusal:
		t.refusal, t.Alone = true, true
		return t, Step{Pause: refusedFor}
	}
	return t, Step{Do: GiveUp, Err: o.Err}
}

// unroutable is the step after a delay queue or an exchange was not there.
func (t Tries) unroutable(err error) Step {
	if t.Returns >= MaxUnroutable {
		return Step{Do: GiveUp, Err: err}
	}
	return Step{Do: Declare}
}

// Because adds to the error of a deadline why the message was not sent before.
func Because(err, last error) error {
	if last == nil || errors.Is(err, last) {
		return err
	}
	return fmt.Errorf("%w; the try before: %w", err, last)
}

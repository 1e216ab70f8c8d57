package amqpx

import (
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// outcome is what became of one try to publish a message.
type outcome struct {
	kind    outcomeKind
	err     error  // why it is not confirmed
	code    int    // of refused and disturbed: AMQP's reply code
	alone   bool   // the message had its channel to itself
	suspect bool   // of disturbed and lost: this message may be the reason
	doubt   string // of disturbed: the broker's text, when it does not say which message it means
	stands  bool   // of refused: access to this exchange has been refused for a while
}

type outcomeKind int

const (
	confirmed  outcomeKind = iota
	impossible             // nothing was written, and nothing ever will be
	unwritten              // nothing was written, this time
	nacked                 // basic.nack
	returned               // basic.return: the broker has no queue for it
	refused                // the broker closed the channel because of this message
	disturbed              // the broker closed the channel, of another message perhaps
	lost                   // the connection ended before the confirm
	expired                // the caller's time was over before the confirm
)

// tries is what a message has been through.
type tries struct {
	count   int    // how often it was written
	unknown bool   // it may have been taken
	doubt   string // it was unconfirmed when the broker closed the channel with this text
	alone   bool   // it gets a channel to itself
	returns int
	refusal bool  // it was refused access once
	broken  int   // connections that ended while it was alone
	last    error // why the last try failed
}

// step is what to do after a try. With neither done nor final the message is
// published again.
type step struct {
	done    bool
	final   error
	declare bool          // declare everything again first
	pause   time.Duration // 0: the usual back-off
}

// maxUnroutable is how often a message may find no queue or no exchange, with
// everything declared again in between, before the error is final.
const maxUnroutable = 3

// maxBroken is how many connections may end while a message is alone on its
// channel before it counts as the reason.
const maxBroken = 2

// next decides what follows a try. It is the only place that does, for Send and
// SendBatch alike.
func (t tries) next(o outcome) (tries, step) {
	if o.kind == confirmed || o.kind > unwritten {
		t.count++
	}
	before := t.last
	t.last = o.err
	switch o.kind {
	case confirmed:
		return t, step{done: true}
	case impossible:
		t.unknown = t.unknown || t.doubt != ""
		return t, step{final: because(o.err, before)}
	case expired:
		t.unknown = true
		return t, step{final: because(o.err, before)}
	case returned:
		t.returns++
		return t, t.unroutable(o.err)
	case refused:
		return t.refused(o)
	case disturbed:
		t.alone = t.alone || o.suspect
		if o.doubt == "" || t.doubt != "" && t.doubt != o.doubt {
			t.unknown = true
		} else {
			t.doubt = o.doubt
		}
	case lost:
		t.unknown = true
		t.alone = t.alone || o.suspect
		if o.suspect && o.alone {
			if t.broken++; t.broken == maxBroken {
				return t, step{final: fmt.Errorf("the broker ends the connection because of this message: %w", o.err)}
			}
		}
	case nacked, unwritten:
	}
	return t, step{}
}

// refused is next after the broker has closed the channel because of the message.
func (t tries) refused(o outcome) (tries, step) {
	if t.doubt != "" && !sameReason(o.err, t.doubt) {
		t.unknown = true // that time it was another message's doing
	}
	t.doubt = ""
	switch {
	case o.code == amqp.NotFound: // the exchange: somebody has deleted it
		t.returns++
		return t, t.unroutable(o.err)
	case o.code == amqp.AccessRefused && !o.stands && !t.refusal:
		t.refusal, t.alone = true, true
		return t, step{pause: refusedFor}
	}
	return t, step{final: o.err}
}

// unroutable is the step after a delay queue or an exchange was not there.
func (t tries) unroutable(err error) step {
	if t.returns >= maxUnroutable {
		return step{final: err}
	}
	return step{declare: true}
}

// because adds the reason why the message was not sent to the error of its
// deadline.
func because(err, last error) error {
	if last == nil || errors.Is(err, last) {
		return err
	}
	return fmt.Errorf("%w; the try before: %w", err, last)
}

func asAMQP(err error) (*amqp.Error, bool) { return errors.AsType[*amqp.Error](err) }

func sameReason(err error, reason string) bool {
	ae, ok := asAMQP(err)
	return ok && ae.Reason == reason
}

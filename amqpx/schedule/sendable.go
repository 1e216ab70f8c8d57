package schedule

import (
	"errors"
	"fmt"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// checker is a Sender that can tell which messages it would refuse. *amqpx.Client
// is one.
type checker interface{ Check(m amqpx.Message) error }

var _ checker = (*amqpx.Client)(nil)

// accepts refuses a task whose message the store's sender would refuse, because
// its strategy has no route for the destination, say.
func (s *Store) accepts(t *Task) error {
	if known := s.cfg.Destination; known != nil {
		if err := known(t.Destination()); err != nil {
			return t.refused(err)
		}
	}
	if l, ok := s.sender.(interface {
		Listed(dest topology.Destination) error
	}); ok {
		if err := l.Listed(t.Destination()); err != nil {
			return t.refused(err)
		}
	}
	if c, ok := s.sender.(checker); ok {
		return t.refused(c.Check(t.undated()))
	}
	return nil
}

// sendable refuses a task whose message no sender and no strategy can send.
func (t *Task) sendable() error {
	m := t.undated()
	err := m.Check()
	if err == nil {
		err = checkKey(t.Destination())
	}
	return t.refused(err)
}

// undated is the task's message without an instant, which may be further away
// than a message can wait.
func (t *Task) undated() amqpx.Message {
	m := (&claimed{Task: *t}).message()
	m.DeliverAt = time.Time{}
	return m
}

func (t *Task) refused(err error) error {
	if err == nil {
		return nil
	}
	refused := &TaskError{ID: t.ID, Field: "Queue", Reason: err.Error()}
	if t.Exchange != "" {
		refused.Field = "Exchange"
	}
	if me, ok := errors.AsType[*amqpx.MessageError](err); ok {
		refused.Field, refused.Reason = me.Field, me.Reason
	}
	return refused
}

// leastOverhead is what every strategy at least has before the destination in a
// routing key: its tag and what belongs to that.
const leastOverhead = len("plugin.")

func checkKey(d topology.Destination) error {
	if key := d.Key(topology.DefaultPrefix); len(key)+leastOverhead > topology.MaxRoutingKey {
		return fmt.Errorf("%q is %d bytes long in a routing key, expected at most %d", key, len(key), topology.MaxRoutingKey-leastOverhead)
	}
	return nil
}

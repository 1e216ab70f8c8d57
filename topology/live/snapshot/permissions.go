package snapshot

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/argument"
	"github.com/rabbitdelay/rabbitdelay/topology/doctor"
)

// permissionTimeout bounds the test of one permission, which a healthy broker answers in milliseconds. One without a
// majority for its metadata answers after 30 s, with an error that ends the connection.
const permissionTimeout = 5 * time.Second

// permissions finds out which of the needed permissions the user lacks. Every
// request here is refused or does nothing, whatever the permissions. They go over a connection of their own, which
// the broker may end over them; then the rest stays unknown.
func (c *collector) permissions(ctx context.Context) error {
	needs := slices.DeleteFunc(doctor.Needs(c.cfg), func(n doctor.Need) bool { return n.Name == doctor.DefaultExchange }) // only publishing tells
	if len(needs) == 0 {
		return nil
	}
	conn, hangUp, err := dial(ctx, c.src.Dial)
	if err != nil {
		return err
	}
	defer hangUp()
	for _, n := range needs {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		denied, err := c.testOne(ctx, conn, n)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			c.unseenf(doctor.AreaPermissions, "whether the user may %s %s %s, and the permissions after it, could not be tested: %s", n.Operation, n.Kind, n.Name, oneLine(err))
			return nil
		}
		if denied != (doctor.Access{}) && !slices.Contains(c.snap.Denied, denied) {
			c.snap.Denied = append(c.snap.Denied, denied)
		}
	}
	return nil
}

// testOne asks for one permission within permissionTimeout, and ends the connection when that is over.
func (c *collector) testOne(ctx context.Context, conn *amqp.Connection, n doctor.Need) (denied doctor.Access, err error) {
	one, cancel := context.WithTimeout(ctx, permissionTimeout)
	defer cancel()
	type answer struct {
		denied doctor.Access
		err    error
	}
	answered := make(chan answer, 1)
	go func() {
		denied, err := askFor(conn, n)
		answered <- answer{denied, err}
	}()
	select {
	case a := <-answered:
		return a.denied, a.err
	case <-one.Done():
		_ = conn.CloseDeadline(time.Now()) // what waits returns now
		return denied, fmt.Errorf("the broker has not answered within %v", permissionTimeout)
	}
}

// noBinding is a routing key that no binding has.
const noBinding = "rabbitdelay.doctor.no-such-binding"

// askFor asks for one permission. The broker checks it before it looks at
// arguments that are wrong on purpose, or for a binding that is not there.
func askFor(conn *amqp.Connection, n doctor.Need) (doctor.Access, error) {
	err := onChannel(conn, func(ch *amqp.Channel) error {
		switch {
		case n.Binding.Queue != "":
			return ch.QueueUnbind(n.Binding.Queue, noBinding, n.Name, nil)
		case n.Binding.ToExchange != "":
			return ch.ExchangeUnbind(n.Binding.ToExchange, noBinding, n.Name, false, nil)
		case n.Kind == topology.KindQueue && n.Operation == "configure":
			_, err := ch.QueueDeclare(n.Name, true, false, false, false, amqp.Table{argument.DeadLetterExchange: int32(1)})
			return err
		case n.Kind == topology.KindQueue:
			_, err := ch.Consume(n.Name, "", false, false, false, false, amqp.Table{"x-priority": "none"})
			return err
		case n.Operation == "configure":
			return ch.ExchangeDeclare(n.Name, amqp.ExchangeTopic, true, false, false, false, amqp.Table{argument.AlternateExchange: int32(1)})
		default: // the destination's permission comes first
			source := "amq.topic"
			if n.Name == source {
				source = "amq.direct"
			}
			return ch.ExchangeUnbind(n.Name, noBinding, source, false, nil)
		}
	})
	write := doctor.Access{Operation: "write", Kind: topology.KindQueue, Name: n.Binding.Queue, Role: n.Role}
	if n.Binding.Queue == "" {
		write.Kind, write.Name = topology.KindExchange, n.Binding.ToExchange
	}
	e, ok := errors.AsType[*amqp.Error](err)
	switch {
	case err == nil:
	case !ok || conn.IsClosed():
		return doctor.Access{}, err
	case e.Code != amqp.AccessRefused:
	case about(e, n.Kind, n.Name):
		return n.Access, nil
	case write.Name != "" && about(e, write.Kind, write.Name):
		return write, nil
	}
	return doctor.Access{}, nil
}

// about reports whether a refusal is about an object. The broker cuts its text at 255 bytes.
func about(e *amqp.Error, kind topology.Kind, name string) bool {
	_, rest, ok := strings.Cut(e.Reason, "access to "+string(kind)+" '")
	return ok && (strings.HasPrefix(rest, name+"'") || strings.HasPrefix(name, rest))
}

// publishing asks for the right to publish to the default exchange, on a connection of its own: under an
// alarm the broker stops reading a connection that has published.
func (c *collector) publishing(ctx context.Context) error {
	i := slices.IndexFunc(doctor.Needs(c.cfg), func(n doctor.Need) bool { return n.Name == doctor.DefaultExchange })
	if i < 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 2*sampleWait)
	defer cancel()
	conn, hangUp, err := dial(ctx, c.src.Dial)
	if err != nil {
		return err
	}
	defer hangUp()
	denied := false
	c.snap.Blocked = unlessBlocked(ctx, conn, func(ctx context.Context) {
		_ = onChannel(conn, func(ch *amqp.Channel) error {
			closed := ch.NotifyClose(make(chan *amqp.Error, 1))
			// The broker refuses the message for its properties if not for the permission.
			err := ch.PublishWithContext(ctx, "", noBinding, false, false, amqp.Publishing{Expiration: "none"})
			if err != nil {
				return err
			}
			select {
			case e := <-closed:
				denied = e != nil && e.Code == amqp.AccessRefused
			case <-time.After(sampleWait):
			case <-ctx.Done():
			}
			return nil
		})
	})
	if denied {
		c.snap.Denied = append(c.snap.Denied, doctor.Needs(c.cfg)[i].Access)
	}
	return nil
}

// unlessBlocked runs what publishes on a connection, ends its context when the broker
// blocks the connection, and returns the reason for that.
func unlessBlocked(ctx context.Context, conn *amqp.Connection, run func(ctx context.Context)) (reason string) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = conn.CloseDeadline(time.Now()) })() // what waits returns
	blocked := conn.NotifyBlocked(make(chan amqp.Blocking, 1))
	done := make(chan struct{})
	go func() {
		defer close(done)
		run(ctx)
	}()
	select {
	case b, open := <-blocked:
		if open { // else the connection has ended, and what waits returns
			reason = b.Reason
			cancel()
		}
		<-done
	case <-done:
		select {
		case b := <-blocked:
			reason = b.Reason
		default:
		}
	}
	return reason
}

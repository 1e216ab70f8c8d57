package snapshot

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/doctor"
	"github.com/rabbitdelay/rabbitdelay/internal/argument"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// permissionTimeout limits the test of one permission, which a healthy broker answers in milliseconds. A broker without
// a majority for its metadata answers after 30 s, with an error that closes the connection.
const permissionTimeout = 5 * time.Second

// permissions finds out which of the needed permissions the user lacks. Its requests change nothing: even if the user
// has the permission, the broker refuses them for another reason, or they have no effect. They use a separate
// connection, because the broker may close the connection in reply. In that case the remaining permissions stay
// unknown.
func (c *collector) permissions(ctx context.Context) error {
	needs := slices.DeleteFunc(doctor.Needs(c.cfg), func(n doctor.Need) bool { return n.Name == doctor.DefaultExchange }) // only a publish can test it
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
			c.uncheckedf(doctor.AreaPermissions, "the permission to %s %s %s, and the permissions after it, could not be tested: %s", n.Operation, n.Kind, n.Name, oneLine(err))
			return nil
		}
		if denied != (doctor.Access{}) && !slices.Contains(c.snap.Denied, denied) {
			c.snap.Denied = append(c.snap.Denied, denied)
		}
	}
	return nil
}

// testOne tests one permission. If there is no answer within permissionTimeout, it closes the connection.
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
		_ = conn.CloseDeadline(time.Now()) // waiting calls return now
		return denied, fmt.Errorf("no answer from the broker within %v", permissionTimeout)
	}
}

// noBinding is a routing key that no binding uses.
const noBinding = "rabbitdelay.doctor.no-such-binding"

// askFor tests one permission. The broker checks the permission before it rejects the deliberately wrong arguments,
// or before it looks for the missing binding.
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
		default: // the broker checks the permission for the destination first
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

// about reports whether a refusal concerns the given object. The broker truncates the text of a refusal to 255 bytes.
func about(e *amqp.Error, kind topology.Kind, name string) bool {
	_, rest, ok := strings.Cut(e.Reason, "access to "+string(kind)+" '")
	return ok && (strings.HasPrefix(rest, name+"'") || strings.HasPrefix(name, rest))
}

// publishing tests the permission to publish to the default exchange. It uses its own connection, because during an
// alarm the broker stops reading from a connection that has published.
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
			// If the user has the permission, the broker refuses the message because of its properties.
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

// unlessBlocked calls run, which publishes on a connection. If the broker blocks the connection, unlessBlocked cancels
// run's context and returns the broker's reason.
func unlessBlocked(ctx context.Context, conn *amqp.Connection, run func(ctx context.Context)) (reason string) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = conn.CloseDeadline(time.Now()) })() // waiting calls return now
	blocked := conn.NotifyBlocked(make(chan amqp.Blocking, 1))
	done := make(chan struct{})
	go func() {
		defer close(done)
		run(ctx)
	}()
	select {
	case b, open := <-blocked:
		if open { // otherwise the connection was closed, and waiting calls return
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

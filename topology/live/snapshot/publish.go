package snapshot

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/topology/argument"
	"github.com/rabbitdelay/rabbitdelay/topology/doctor"
)

// Sampling of the broker's clock: a message every sampleEvery for a little more
// than a second, so that one second's end lies among them.
const (
	sampleEvery = 4 * time.Millisecond
	sampleFor   = 1050 * time.Millisecond
	sampleWait  = 3 * time.Second // for what is still under way
)

// publishing asks for the right to publish, on a connection of its own: under an
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
	c.snap.Blocked = unlessBlocked(ctx, conn, func(ctx context.Context) { denied = mayNotPublish(ctx, conn) })
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

// mayNotPublish asks for the permission to publish to the default exchange, with
// a message that the broker refuses for its properties if not for that.
func mayNotPublish(ctx context.Context, conn *amqp.Connection) bool {
	denied := false
	_ = onChannel(conn, func(ch *amqp.Channel) error {
		closed := ch.NotifyClose(make(chan *amqp.Error, 1))
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
	return denied
}

// sample sends messages through a queue in which they expire at once. The broker
// notes in their x-death header when they did, in whole seconds.
func (c *collector) sample(ctx context.Context, v *visit) ([]reading, error) {
	out, err := v.ch.QueueDeclare("", false, true, true, false, amqp.Table{
		argument.MessageTTL: int32(0), argument.DeadLetterExchange: "", argument.DeadLetterRoutingKey: v.queue,
	})
	if err != nil {
		return nil, err
	}
	deliveries, err := v.ch.Consume(v.queue, "", true, true, false, false, nil)
	if err != nil {
		return nil, err
	}
	var sent []time.Time
	var readings []reading
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	stop := time.After(sampleFor)
	giveUp := time.After(sampleFor + sampleWait)
	sending := true
	for sending || len(readings) < len(sent) {
		select {
		case <-tick.C:
			if !sending {
				continue
			}
			sent = append(sent, c.src.Now())
			err := v.ch.PublishWithContext(ctx, "", out.Name, false, false, amqp.Publishing{MessageId: strconv.Itoa(len(sent) - 1)})
			if err != nil {
				return readings, err
			}
		case d, ok := <-deliveries:
			if !ok {
				return readings, errors.New("the channel ended")
			}
			i, err := strconv.Atoi(d.MessageId)
			at, dated := deathTime(d)
			if err != nil || i < 0 || i >= len(sent) || !dated {
				return readings, errors.New("a message came back changed")
			}
			readings = append(readings, deathReading(sent[i], c.src.Now(), at))
		case <-stop:
			sending = false
		case <-giveUp:
			return readings, errors.New("messages did not come back")
		case <-ctx.Done():
			return readings, context.Cause(ctx)
		}
	}
	return readings, nil
}

func deathTime(d amqp.Delivery) (time.Time, bool) {
	deaths, _ := d.Headers["x-death"].([]any)
	if len(deaths) == 0 {
		return time.Time{}, false
	}
	death, _ := deaths[0].(amqp.Table)
	at, ok := death["time"].(time.Time)
	return at, ok
}

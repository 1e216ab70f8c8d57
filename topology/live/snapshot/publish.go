package snapshot

import (
	"context"
	"errors"
	"strconv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/doctor"
)

// Sampling of the broker's clock: a message every sampleEvery for a little more
// than a second, so that one second's end lies among them.
const (
	sampleEvery = 4 * time.Millisecond
	sampleFor   = 1050 * time.Millisecond
	sampleWait  = 3 * time.Second // for what is still under way
)

// publishing does what needs publishing, on a connection of its own: under an
// alarm the broker stops reading a connection that has published.
func (c *collector) publishing(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, sampleFor+2*sampleWait)
	defer cancel()
	conn, hangUp, err := c.dial(ctx)
	if err != nil {
		return err
	}
	defer hangUp()
	blocked := conn.NotifyBlocked(make(chan amqp.Blocking, 1))
	done := make(chan published, 1)
	go func() { done <- c.publish(ctx, conn) }()
	var p published
	select {
	case b, open := <-blocked:
		if open { // else the connection has ended, and what waits returns
			c.snap.Blocked = b.Reason
			cancel() // hangs up, so that what waits returns
		}
		p = <-done
	case p = <-done:
		select {
		case b := <-blocked:
			c.snap.Blocked = b.Reason
		default:
		}
	}
	if p.denied != (doctor.Access{}) {
		c.snap.Denied = append(c.snap.Denied, p.denied)
	}
	c.clocks[methodDeath] = p.readings
	return nil
}

type published struct {
	denied   doctor.Access
	readings []reading
}

func (c *collector) publish(ctx context.Context, conn *amqp.Connection) published {
	var p published
	for _, n := range doctor.Needs(c.cfg) {
		if n.Name == doctor.DefaultExchange && mayNotPublish(ctx, conn) {
			p.denied = n.Access
		}
	}
	if !c.src.SkipClock {
		p.readings, _ = c.sampleClock(ctx, conn) // a user who may not simply has none
	}
	return p
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

// sampleClock sends messages through a queue in which they expire at once. The
// broker notes in their x-death header when they did, in whole seconds.
func (c *collector) sampleClock(ctx context.Context, conn *amqp.Connection) ([]reading, error) {
	ch, err := conn.Channel()
	if err != nil {
		return nil, err
	}
	defer func() { _ = ch.Close() }()
	in, err := ch.QueueDeclare("", false, true, true, false, nil)
	if err != nil {
		return nil, err
	}
	out, err := ch.QueueDeclare("", false, true, true, false, amqp.Table{
		topology.ArgMessageTTL: int32(0), topology.ArgDeadLetterExchange: "", topology.ArgDeadLetterRoutingKey: in.Name,
	})
	if err != nil {
		return nil, err
	}
	deliveries, err := ch.Consume(in.Name, "", true, true, false, false, nil)
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
			err := ch.PublishWithContext(ctx, "", out.Name, false, false, amqp.Publishing{MessageId: strconv.Itoa(len(sent) - 1)})
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

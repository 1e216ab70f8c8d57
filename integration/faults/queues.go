package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

// onChannel runs f with a function that opens channels directly to a broker, without the proxies.
func (r *run) onChannel(f func(ch func() (*amqp.Channel, error)) error) error {
	var errs []error
	for _, url := range r.cfg.Brokers.URLs() {
		conn, err := amqp.Dial(url)
		if err != nil {
			errs = append(errs, errors.New("a node does not accept connections"))
			continue
		}
		err = f(conn.Channel)
		_ = conn.Close()
		return err
	}
	return errors.Join(errs...)
}

// depth returns the number of ready messages in a queue, or 0 if the queue does not exist.
func depth(open func() (*amqp.Channel, error), queue string) (int, error) {
	ch, err := open()
	if err != nil {
		return 0, err
	}
	q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	var answer *amqp.Error
	if errors.As(err, &answer) && answer.Code == amqp.NotFound {
		return 0, nil // the error has closed the channel
	}
	if err != nil {
		return 0, err
	}
	return q.Messages, ch.Close()
}

// waiting returns the number of messages in the delay queues, the route queue and the destinations. A passive
// declaration is not enough, because it does not count unacknowledged messages and messages that an at-least-once queue
// is dead-lettering.
func (r *run) waiting(ctx context.Context) (total int, err error) {
	out, err := r.cfg.Brokers.Ctl(ctx, 0, "--silent", "list_queues", "--formatter", "json", "name", "messages")
	if err != nil {
		return 0, err
	}
	var queues []struct {
		Name     string `json:"name"`
		Messages int    `json:"messages"`
	}
	if err := json.Unmarshal([]byte(out), &queues); err != nil {
		return 0, fmt.Errorf("list_queues: the output is not valid JSON: %w", err)
	}
	names := r.delayQueues()
	for _, q := range queues {
		if slices.Contains(names, q.Name) {
			total += q.Messages
		}
	}
	return total, nil
}

func (r *run) delayQueues() []string {
	route := topology.Destination{Exchange: events, RoutingKey: eventKey}
	names := []string{destination, taskQueue, route.TargetQueue(topology.DefaultPrefix)}
	for _, c := range r.clients {
		for _, q := range c.Strategy().Topology().Queues {
			if q.Name != topology.ParkedQueue(topology.DefaultPrefix) && !slices.Contains(names, q.Name) {
				names = append(names, q.Name)
			}
		}
	}
	return names
}

// leftOver counts the messages in the parked queue and in the dead-letter queues.
func (r *run) leftOver() (parked, dead int, err error) {
	err = r.onChannel(func(open func() (*amqp.Channel, error)) error {
		var err error
		parked, err = depth(open, topology.ParkedQueue(topology.DefaultPrefix))
		for _, q := range []string{destination, taskQueue} {
			n, err2 := depth(open, topology.Destination{Queue: q}.DeadLetterQueue())
			dead, err = dead+n, errors.Join(err, err2)
		}
		return err
	})
	return parked, dead, err
}

// purge removes the messages that an earlier run on the same brokers left.
func (r *run) purge() error {
	names := append(r.delayQueues(), topology.ParkedQueue(topology.DefaultPrefix), topology.Destination{Queue: destination}.DeadLetterQueue())
	return r.onChannel(func(open func() (*amqp.Channel, error)) error {
		for _, q := range names {
			n, err := depth(open, q)
			if err != nil {
				return err
			}
			if n == 0 {
				continue
			}
			ch, err := open()
			if err != nil {
				return err
			}
			if _, err := ch.QueuePurge(q, false); err != nil {
				return err
			}
			_ = ch.Close()
		}
		return nil
	})
}

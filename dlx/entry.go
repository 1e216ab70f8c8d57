package dlx

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/argument"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// checkNames checks the fields that all configurations have in common.
func checkNames(of, prefix string, qt topology.QueueType) error {
	var errs []error
	if err := topology.CheckPrefix(prefix); err != nil {
		if f, ok := errors.AsType[*topology.FieldError](err); ok {
			f.Of = of
		}
		errs = append(errs, err)
	}
	if qt != topology.Quorum && qt != topology.Classic {
		errs = append(errs, &topology.FieldError{Of: of, Field: "QueueType", Value: string(qt), Want: "quorum or classic"})
	}
	return errors.Join(errs...)
}

// variant returns the part of object names that distinguishes two configurations on one broker. It contains the tag
// unless the tag is the default, and "classic" for classic queues. It is empty for the default configuration.
func variant(tag, defaultTag string, qt topology.QueueType) string {
	switch {
	case tag == defaultTag && qt != topology.Classic:
		return ""
	case tag == defaultTag:
		return ".classic"
	case qt != topology.Classic:
		return "." + tag
	}
	return "." + tag + "-classic"
}

const day = 24 * time.Hour

// durationName formats a whole number of milliseconds as one topic word, such as 10ms, 30m, 1d or 1m4s. Different
// durations have different names.
func durationName(d time.Duration) string {
	if d == 0 {
		return "0s"
	}
	var b []byte
	for _, u := range []struct {
		unit time.Duration
		name string
	}{{day, "d"}, {time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}, {time.Millisecond, "ms"}} {
		if n := d / u.unit; n > 0 {
			b = strconv.AppendInt(b, int64(n), 10)
			b = append(b, u.name...)
			d %= u.unit
		}
	}
	return string(b)
}

// destinationKey returns the destination's part of a routing key. The parameter overhead is the length of the other
// parts.
func destinationKey(strategy string, dest topology.Destination, prefix string, overhead int) (string, error) {
	if err := dest.Validate(prefix); err != nil {
		return "", fmt.Errorf("%s strategy: %w", strategy, err)
	}
	key := dest.Key(prefix)
	if len(key)+overhead > topology.MaxRoutingKey {
		return "", &topology.KeyError{Strategy: strategy, Key: key, Overhead: overhead}
	}
	return key, nil
}

// negative returns the error for a negative delay or, if the delay is not negative, for a negative tolerance.
func negative(strategy string, delay, tolerance, maximum time.Duration) error {
	e := &topology.DelayError{Strategy: strategy, Delay: delay, Max: maximum, Reason: "is negative", Hint: "send without a delay"}
	if delay >= 0 {
		e.Reason = "has the negative tolerance " + topology.FormatDuration(tolerance)
		e.Hint = "expected a tolerance of 0 or more: how much later the message may be"
	}
	return e
}

// delayQueue returns a queue that holds messages for ttl and then dead-letters them to next with their original routing
// key.
func delayQueue(name string, ttl time.Duration, next string, qt topology.QueueType) topology.Queue {
	q := topology.Queue{
		Name:       name,
		Type:       qt,
		MessageTTL: &ttl,
		DeadLetter: &topology.DeadLetter{Exchange: next},
	}
	if qt == topology.Quorum {
		q.DeadLetter.AtLeastOnce = true
		q.Overflow = argument.RejectPublish // any other overflow behaviour turns at-least-once off
		limit := topology.NoDeliveryLimit
		q.DeliveryLimit = &limit
	}
	return q
}

// A message enters a strategy through an exchange that has the name of the message's first queue and is bound only to
// that queue.
//
// A topic exchange could find the queue by the routing key, which is what BucketConfig.TopicPermissions does, but it
// doubles the broker's cost of a publish. The exchange walks the words of the key, and the broker checks the key of
// every message that a client publishes to a topic exchange against the user's topic permissions, even if none are set.
// A channel caches the result for only a dozen keys. This does not help, because delays are part of the key, so nearly
// every message has a different key.

// addQueue adds a delay queue with its own entry exchange. If through is not empty, the queue gets no entry exchange,
// because messages enter all queues through the exchange of that name. An entry exchange has no alternate exchange, so
// that a mandatory message is returned to its publisher if the queue is missing.
func addQueue(t *topology.Topology, q topology.Queue, through string) {
	t.Queues = append(t.Queues, q)
	if through != "" {
		return
	}
	t.Exchanges = append(t.Exchanges, topology.Exchange{Name: q.Name, Kind: "fanout"})
	t.Bindings = append(t.Bindings, topology.Binding{Exchange: q.Name, Queue: q.Name})
}

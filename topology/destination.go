package topology

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/argument"
	"github.com/rabbitdelay/rabbitdelay/internal/naming"
)

// Destination is the final destination of a delayed message: a queue, or an exchange of any type with a routing key.
type Destination struct {
	// Name identifies the destination in YAML. Default: its queue's name, or exchange:routing-key.
	Name string
	// Queue is the destination queue. Set either Queue or Exchange.
	Queue string
	// Exchange and RoutingKey are the alternative to Queue. The message is published to the exchange with exactly
	// this routing key.
	Exchange   string
	RoutingKey string
	// Retry is the policy of Queue's consumers for retrying a message after its handler has failed. Nil means the
	// consumer's own default.
	Retry *Retry
	// Lead is how long before its due time a delayed message is delivered to the consumer, which buffers it until then.
	// It is at most MaxLead. Nil means the client's own lead. See amqpx.Config.
	Lead *time.Duration
	// RateLimit limits the number of tasks of package schedule per second for this destination. Nil means no limit. All
	// routing keys of an exchange share one rate limit.
	RateLimit *RateLimit
	// DeadLetter is the queue for messages that were rejected or have used up their attempts. Default: Queue +
	// ".dead".
	DeadLetter string
}

// RateLimit limits how many tasks of package schedule are delivered to a destination; see schedule.Config.RateLimits.
type RateLimit struct {
	PerSecond float64 // from one a day to MaxPerSecond
	Burst     int     // 0 means a tenth of PerSecond, but at least 1
}

// These are the bounds of a RateLimit: one task per day, and 100000 per second.
const (
	minPerSecond = 1.0 / (24 * 60 * 60)
	MaxPerSecond = 100_000
)

// Valid reports whether the rate limit is within its bounds.
func (c RateLimit) Valid() bool {
	return c.PerSecond >= minPerSecond && c.PerSecond <= MaxPerSecond && c.Burst >= 0 && c.Burst <= MaxPerSecond
}

// MaxLead is the maximum of Destination.Lead.
const MaxLead = time.Minute

// ToExchange reports whether the destination is an exchange.
func (d Destination) ToExchange() bool { return d.Queue == "" }

// ServerNamed reports whether the broker has named the queue (amq.gen-...). Clients cannot declare a queue with such
// a name, and there is no dead-letter queue for it.
func (d Destination) ServerNamed() bool { return strings.HasPrefix(d.Queue, "amq.") }

// DeadLetterQueue returns the queue for failed messages of a queue destination.
func (d Destination) DeadLetterQueue() string {
	if d.DeadLetter != "" {
		return d.DeadLetter
	}
	return d.Queue + ".dead"
}

// String returns the destination in the form of the queue's name or "exchange:routing-key". It returns "" for the
// zero value.
func (d Destination) String() string {
	if d.ToExchange() && d.Exchange+d.RoutingKey != "" {
		return d.Exchange + ":" + d.RoutingKey
	}
	return d.Queue
}

// label returns the destination's name in YAML.
func (d Destination) label() string { return cmp.Or(d.Name, d.String()) }

// TargetQueue returns the queue that delay strategies bind for the destination: the queue itself, or the route queue
// that forwards to the exchange. Different destinations have different target queues.
func (d Destination) TargetQueue(prefix string) string {
	if !d.ToExchange() {
		return d.Queue
	}
	return routeQueueName(prefix, d.Exchange, d.RoutingKey)
}

// Key returns the part of a routing key that names the destination. It is the target queue's name with topic
// wildcards escaped, so that a binding can contain it.
func (d Destination) Key(prefix string) string {
	return escapeTopicWords(d.TargetQueue(prefix))
}

// DestinationOf returns the destination with the given Key. It returns false for an exchange destination whose name was
// too long, so that its key contains only a hash.
func DestinationOf(prefix, key string) (Destination, bool) {
	words := strings.Split(key, ".")
	for i, w := range words {
		words[i] = unescapeWord.Replace(w)
	}
	name := strings.Join(words, ".")
	route, ok := strings.CutPrefix(name, prefix+".route.")
	if !ok {
		return Destination{Queue: name}, name != ""
	}
	exchange, routingKey, ok := strings.Cut(route, ":")
	return Destination{Exchange: unescapeRoute.Replace(exchange), RoutingKey: routingKey}, ok
}

var (
	unescapeWord  = strings.NewReplacer("%2A", "*", "%23", "#", "%25", "%")
	unescapeRoute = strings.NewReplacer("%3A", ":", "%25", "%")
)

// escapeTopicWords escapes a name for use in a topic binding, because the words "*" and "#" would match other words.
// The escape character is '%'.
func escapeTopicWords(name string) string {
	if !strings.ContainsAny(name, "*#%") {
		return name
	}
	words := strings.Split(name, ".")
	for i, w := range words {
		switch w {
		case "*":
			words[i] = "%2A"
		case "#":
			words[i] = "%23"
		default:
			words[i] = strings.ReplaceAll(w, "%", "%25")
		}
	}
	return strings.Join(words, ".")
}

// Queues returns the queues of a queue destination: the queue itself and its dead-letter queue. Messages that the
// broker removes, for example because of a length or delivery limit in a policy, are also dead-lettered to that queue
// instead of being dropped.
func (d Destination) Queues(t QueueType) []Queue {
	dead := d.DeadLetterQueue()
	q := Queue{Name: d.Queue, Type: t, DeadLetter: &DeadLetter{RoutingKey: &dead}}
	if t != Classic {
		q.DeadLetter.AtLeastOnce = true
		q.Overflow = argument.RejectPublish
	}
	return []Queue{Queue{Name: dead, Type: t}.unlimited(), q.unlimited()}
}

// Validate rejects a destination with neither or both of queue and exchange, and one that belongs to a delay strategy
// with this prefix, because a message sent there would wait a second time or loop forever. The error is a
// *DestinationError.
func (d Destination) Validate(prefix string) error {
	refuse := func(reason string) error { return &DestinationError{Destination: d, Reason: reason} }
	name := d.Queue
	switch {
	case d.Queue != "" && (d.Exchange != "" || d.RoutingKey != ""):
		return refuse("has both a queue and an exchange; give either a queue, or an exchange and a routing key")
	case d.Queue == "" && d.Exchange == "" && d.RoutingKey == "":
		return refuse("is empty; give either a queue, or an exchange and a routing key")
	case d.Queue == "" && d.Exchange != "":
		name = d.Exchange
	case d.Queue == "": // the default exchange routes to the queue of that name
		name = d.RoutingKey
	}
	if naming.Reserved(prefix, name) {
		return refuse(fmt.Sprintf("belongs to the delay strategies with prefix %q; choose another name or another prefix", prefix))
	}
	return nil
}

// ErrDestination is wrapped by every *KeyError and *DestinationError.
var ErrDestination = errors.New("invalid destination")

// DestinationError explains why messages cannot be sent to a destination.
type DestinationError struct {
	Destination Destination
	Reason      string
}

func (e *DestinationError) Error() string {
	d := e.Destination
	if d.Queue != "" && d.Exchange == "" {
		return fmt.Sprintf("destination queue %q %s", d.Queue, e.Reason)
	}
	if d.Queue == "" {
		return fmt.Sprintf("destination exchange %q with routing key %q %s", d.Exchange, d.RoutingKey, e.Reason)
	}
	return fmt.Sprintf("destination queue %q, exchange %q %s", d.Queue, d.Exchange, e.Reason)
}

// Unwrap makes errors.Is(err, ErrDestination) true.
func (e *DestinationError) Unwrap() error { return ErrDestination }

// WithDestinationQueues returns the topology with the queues that its destinations need and that it does not describe
// yet. For a queue destination, these are the queue and its dead-letter queue, with the given type (empty means
// Quorum). For an exchange destination, these are the route queue and the dead-letter queue, if it is set.
func (t Topology) WithDestinationQueues(prefix string, queueType QueueType) Topology {
	described := map[string]bool{}
	for _, q := range t.Queues {
		described[q.Name] = true
	}
	out := t
	out.Queues = append([]Queue(nil), t.Queues...)
	add := func(q Queue) {
		if !described[q.Name] {
			described[q.Name] = true
			out.Queues = append(out.Queues, q)
		}
	}
	for _, d := range t.Destinations {
		if d.ToExchange() {
			add(d.RouteQueue(prefix))
			if d.DeadLetter != "" {
				add(Queue{Name: d.DeadLetter, Type: queueType}.unlimited())
			}
			continue
		}
		for _, q := range d.Queues(queueType) {
			add(q)
		}
	}
	return out
}

package topology

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/topology/argument"
	"github.com/rabbitdelay/rabbitdelay/topology/naming"
)

// Destination is where a delayed message ends: a queue, or an exchange (of any
// type) with a routing key.
type Destination struct {
	// Name identifies the destination in YAML; empty means its queue's name.
	Name string
	// Queue is the destination queue. Either it or Exchange is set.
	Queue string
	// Exchange and RoutingKey are the other form. The message reaches the
	// exchange with exactly this routing key.
	Exchange   string
	RoutingKey string
	// Retry is what consumers of Queue do with a message whose handler failed;
	// nil means the consumer's own default.
	Retry *Retry
	// Lead is how long before its instant a delayed message reaches the consumer, which
	// holds it until then, at most MaxLead; nil means the client's own. See amqpx.Config.
	Lead *time.Duration
	// Ceiling bounds how many tasks of package schedule come here in a second; nil means any
	// number. An exchange has one for all its routing keys.
	Ceiling *Ceiling
	// DeadLetter is the queue for messages whose attempts are used up or that
	// were rejected; empty means Queue + ".dead".
	DeadLetter string
}

// Ceiling is a bound of schedule.Config.Ceilings, which documents it.
type Ceiling struct {
	PerSecond float64 // MinPerSecond to MaxPerSecond
	Burst     int     // 0 means a tenth of PerSecond, at least 1
}

// Bounds of a Ceiling: one a day, and 100000 a second.
const (
	MinPerSecond = 1.0 / (24 * 60 * 60)
	MaxPerSecond = 100_000
)

// Valid reports whether it is within its bounds.
func (c Ceiling) Valid() bool {
	return c.PerSecond >= MinPerSecond && c.PerSecond <= MaxPerSecond && c.Burst >= 0 && c.Burst <= MaxPerSecond
}

// MaxLead is the longest lead.
const MaxLead = time.Minute

// ToExchange reports whether the destination is an exchange.
func (d Destination) ToExchange() bool { return d.Queue == "" }

// ServerNamed reports whether the broker has named the queue (amq.gen-...). Only the
// broker makes such a queue, and none beside it for its dead letters.
func (d Destination) ServerNamed() bool { return strings.HasPrefix(d.Queue, "amq.") }

// DeadLetterQueue returns the queue for failed messages of a queue destination.
func (d Destination) DeadLetterQueue() string {
	if d.DeadLetter != "" {
		return d.DeadLetter
	}
	return d.Queue + ".dead"
}

// String is where messages go: the queue, or "exchange:routing-key"; empty for the zero
// value.
func (d Destination) String() string {
	if d.ToExchange() && d.Exchange+d.RoutingKey != "" {
		return d.Exchange + ":" + d.RoutingKey
	}
	return d.Queue
}

// label is the destination's name in YAML.
func (d Destination) label() string { return cmp.Or(d.Name, d.String()) }

// TargetQueue returns the queue to which delay strategies bind the destination: the
// queue itself, or the route queue that forwards to the exchange. Different
// destinations have different target queues.
func (d Destination) TargetQueue(prefix string) string {
	if !d.ToExchange() {
		return d.Queue
	}
	return routeQueueName(prefix, d.Exchange, d.RoutingKey)
}

// Key returns the part of a routing key that names the destination: the target
// queue's name with topic wildcards escaped, so that it can stand in a binding.
func (d Destination) Key(prefix string) string {
	return escapeTopicWords(d.TargetQueue(prefix))
}

// DestinationOf returns the destination with this Key. It is false for an exchange
// destination whose name is too long to stand in it.
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

// escapeTopicWords makes a name safe as part of a topic binding: the words "*"
// and "#" would match others. '%' is the escape character.
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

// Queues returns what a queue destination needs: the queue and its dead-letter
// queue. Messages that the broker gives up on, for example because of a
// policy's length or delivery limit, go to the dead-letter queue too instead of
// being dropped.
func (d Destination) Queues(t QueueType) []Queue {
	dead := d.DeadLetterQueue()
	q := Queue{Name: d.Queue, Type: t, DeadLetter: &DeadLetter{RoutingKey: &dead}}
	if t != Classic {
		q.DeadLetter.AtLeastOnce = true
		q.Overflow = argument.RejectPublish
	}
	return []Queue{Queue{Name: dead, Type: t}.unlimited(), q.unlimited()}
}

// Validate refuses a destination without queue and exchange, one with both, and
// one that a delay strategy with this prefix owns: a message sent there would
// wait a second time, or loop for ever. The error is a *DestinationError.
func (d Destination) Validate(prefix string) error {
	refuse := func(reason string) error { return &DestinationError{Destination: d, Reason: reason} }
	name := d.Queue
	switch {
	case d.Queue != "" && (d.Exchange != "" || d.RoutingKey != ""):
		return refuse("is a queue and an exchange at once; give either a queue, or an exchange and a routing key")
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

// WithDestinationQueues adds the queues that the destinations need and the
// topology does not describe: the queues of a queue destination, of the given
// type (empty means Quorum), and the route queue of an exchange destination.
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

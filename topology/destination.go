package topology

import (
	"strings"
	"time"
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
	// DeadLetter is the queue for messages whose attempts are used up or that
	// were rejected; empty means Queue + ".dead".
	DeadLetter string
}

// Retry is a retry policy as data; package dlx turns it into delays. A field that
// is 0 means the default.
type Retry struct {
	MaxAttempts int           // deliveries in all, the first one included
	Backoff     time.Duration // delay before the second attempt
	MaxBackoff  time.Duration // bound of the exponential growth
	Multiplier  float64       // growth per attempt
	Jitter      float64       // share of the delay that is random, up to 1; NoJitter for none
}

// NoJitter as a Retry's Jitter makes every delay the same, which in YAML is
// "jitter: 0". The field's own 0 is its default, a fifth.
const NoJitter = -1

// ToExchange tells whether the destination is an exchange.
func (d Destination) ToExchange() bool { return d.Queue == "" }

// DeadLetterQueue is the queue for failed messages of a queue destination.
func (d Destination) DeadLetterQueue() string {
	if d.DeadLetter != "" {
		return d.DeadLetter
	}
	return d.Queue + ".dead"
}

// TargetQueue is the queue to which delay strategies bind the destination: the
// queue itself, or the route queue that forwards to the exchange. Different
// destinations have different target queues.
func (d Destination) TargetQueue(prefix string) string {
	if !d.ToExchange() {
		return d.Queue
	}
	return routeQueueName(prefix, d.Exchange, d.RoutingKey)
}

// Key is the part of a routing key that names the destination: the target
// queue's name with topic wildcards escaped, so that it can stand in a binding.
func (d Destination) Key(prefix string) string {
	return escapeTopicWords(d.TargetQueue(prefix))
}

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

// Queues are what a queue destination needs: the queue and its dead-letter
// queue. What the broker itself gives up on (because of a policy with a length or
// a delivery limit, say) goes to the dead-letter queue as well, instead of being
// dropped.
func (d Destination) Queues(t QueueType) []Queue {
	dead := d.DeadLetterQueue()
	q := Queue{Name: d.Queue, Type: t, DeadLetter: &DeadLetter{RoutingKey: &dead}}
	if t != Classic {
		q.DeadLetter.AtLeastOnce = true
		q.Overflow = OverflowRejectPublish
	}
	return []Queue{Queue{Name: dead, Type: t}.unlimited(), q.unlimited()}
}

package rabbit

import (
	"cmp"
	"container/heap"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Options configures a Broker.
type Options struct {
	Version Version
	// Plugin allows exchanges of type x-delayed-message.
	Plugin bool
	// DefaultQueueType is the type of queues that are declared without one. Default classic.
	DefaultQueueType string
	// LateBindings is how long a new binding of a topic exchange takes to become effective. Default 0.
	LateBindings time.Duration
}

// Broker is one node with its virtual hosts.
type Broker struct {
	opts   Options
	now    int64 // ms since the epoch, rounded down as the broker does
	vhosts map[string]*VHost
	events events
	seq    uint64 // sequence number of messages and events
}

// New returns a broker with the virtual host "/" and its clock set to now.
func New(opts Options, now time.Time) *Broker {
	b := &Broker{opts: opts, now: now.UnixMilli(), vhosts: map[string]*VHost{}}
	b.AddVHost("/")
	return b
}

// AddVHost returns the virtual host with the given name. If it does not exist, AddVHost creates it with the predefined
// exchanges.
func (b *Broker) AddVHost(name string) *VHost {
	if v := b.vhosts[name]; v != nil {
		return v
	}
	v := &VHost{broker: b, name: name, exchanges: map[string]*Exchange{}, queues: map[string]*Queue{}, delayed: map[*Message]bool{}}
	for name, kind := range map[string]string{
		"": "direct", "amq.direct": "direct", "amq.topic": "topic", "amq.fanout": "fanout",
		"amq.headers": "headers", "amq.match": "headers", "amq.rabbitmq.trace": "topic",
	} {
		v.exchanges[name] = &Exchange{
			ExchangeSpec: ExchangeSpec{Name: name, Kind: kind, Durable: true, Internal: name == "amq.rabbitmq.trace"},
			vhost:        v,
		}
	}
	b.vhosts[name] = v
	return v
}

// VHost returns a virtual host, or nil if it does not exist.
func (b *Broker) VHost(name string) *VHost { return b.vhosts[name] }

// Version returns the version whose rules apply.
func (b *Broker) Version() Version { return b.opts.Version }

func (b *Broker) is(major, minor, patch int) bool { return b.opts.Version.AtLeast(major, minor, patch) }

// CloseOwner deletes the exclusive queues of a connection that was closed.
func (b *Broker) CloseOwner(owner any) {
	for _, v := range b.vhosts {
		for _, q := range v.queues {
			if q.owner == owner && owner != nil {
				v.remove(q)
			}
		}
	}
}

// event is a function that runs when the clock reaches a time.
type event struct {
	at  int64
	seq uint64
	run func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].seq < e[j].seq
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) } //nolint:errcheck,forcetypeassert // only the method at pushes events
func (e *events) Pop() any {
	last := len(*e) - 1
	x := (*e)[last]
	(*e)[last] = event{}
	*e = (*e)[:last]
	return x
}

// at schedules f for the time ms on the broker's clock.
func (b *Broker) at(ms int64, f func()) {
	b.seq++
	heap.Push(&b.events, event{ms, b.seq, f})
}

// Advance moves the clock forward to now and runs all events that are due. The clock never goes back.
func (b *Broker) Advance(now time.Time) {
	ms := now.UnixMilli()
	for len(b.events) > 0 && b.events[0].at <= ms {
		e := heap.Pop(&b.events).(event) //nolint:errcheck,forcetypeassert // only events are in it
		b.now = max(b.now, e.at)
		e.run()
	}
	b.now = max(b.now, ms)
}

// Next returns the time of the next event. It returns false if there is none.
func (b *Broker) Next() (at time.Time, ok bool) {
	if len(b.events) == 0 {
		return time.Time{}, false
	}
	return time.UnixMilli(b.events[0].at), true
}

// VHost is a virtual host with its exchanges and queues.
type VHost struct {
	broker    *Broker
	name      string
	exchanges map[string]*Exchange
	queues    map[string]*Queue
	delayed   map[*Message]bool // messages that the plugin holds
}

// Queue returns a queue, or nil if it does not exist.
func (v *VHost) Queue(name string) *Queue { return v.queues[name] }

// Exchange returns an exchange, or nil if it does not exist.
func (v *VHost) Exchange(name string) *Exchange { return v.exchanges[name] }

// QueueNames returns the names of all queues, sorted.
func (v *VHost) QueueNames() []string { return slices.Sorted(maps.Keys(v.queues)) }

// ExchangeNames returns the names of all exchanges, sorted.
func (v *VHost) ExchangeNames() []string { return slices.Sorted(maps.Keys(v.exchanges)) }

func (v *VHost) is(major, minor, patch int) bool { return v.broker.is(major, minor, patch) }

func reserved(kind, name string) *Error {
	return Refusal(amqp.AccessRefused, "%s name '%s' contains reserved prefix 'amq.*'", kind, name)
}

// Version is a version of RabbitMQ, such as 3.10.8.
type Version struct{ Major, Minor, Patch int }

// ParseVersion parses a version such as "4.3.0" or "4.3".
func ParseVersion(s string) (Version, error) {
	parts := strings.Split(s, ".")
	var n [3]int
	if len(parts) < 2 || len(parts) > 3 {
		return Version{}, fmt.Errorf("version %q; expected one like 4.3.0", s)
	}
	for i, p := range parts {
		v, err := strconv.Atoi(p)
		if err != nil || v < 0 {
			return Version{}, fmt.Errorf("version %q; expected one like 4.3.0", s)
		}
		n[i] = v
	}
	return Version{n[0], n[1], n[2]}, nil
}

func (v Version) String() string { return fmt.Sprintf("%d.%d.%d", v.Major, v.Minor, v.Patch) }

// AtLeast reports whether v is the given version or a later one.
func (v Version) AtLeast(major, minor, patch int) bool {
	return cmp.Or(cmp.Compare(v.Major, major), cmp.Compare(v.Minor, minor), cmp.Compare(v.Patch, patch)) >= 0
}

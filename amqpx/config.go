package amqpx

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/brokerurl"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/units"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/wire"
	"github.com/rabbitdelay/rabbitdelay/amqpx/tlsfiles"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Declaration is what a Client may create on the broker.
type Declaration string

const (
	// DeclareMissing creates the strategy's topology, and destination queues
	// that do not exist. It needs configure permission. It is the default.
	DeclareMissing Declaration = "missing"
	// DeclareListed creates the strategy's topology and the destinations in
	// Config.Destinations. Any other destination is refused with a
	// *topology.DestinationError, so that a typo does not create a queue that
	// nobody reads; except a queue for replies that the broker has named.
	DeclareListed Declaration = "listed"
	// DeclareNothing checks that things exist and creates none: for clients
	// without configure permission, after `rabbitdelay apply`. It assumes that
	// objects exist which the user may not see (since RabbitMQ 4.3 that needs
	// some right to them). It binds its destinations again, because AMQP has no
	// other way to check a binding; that needs write on the destination's queue
	// and read on the delivery exchange. Without these Send fails with a
	// *topology.DestinationError.
	DeclareNothing Declaration = "nothing"
)

// Defaults of Config, and of a consumer.
const (
	DefaultHeartbeat       = 10 * time.Second
	DefaultDialTimeout     = 10 * time.Second
	DefaultReconnectMin    = 100 * time.Millisecond
	DefaultReconnectMax    = 10 * time.Second
	DefaultSendTimeout     = 30 * time.Second
	DefaultMaxInFlight     = 1024
	DefaultRecheckInterval = time.Minute
	DefaultMaxBody         = 16 << 20
	DefaultMaxRouteQueues  = 100

	DefaultConcurrency  = 16
	DefaultDrainTimeout = 30 * time.Second
	DefaultHeldBytes    = 64 << 20
)

// Config configures a Client. Only URL, or URLs, is required; zero values take
// the defaults given at each field.
type Config struct {
	// URL of the broker, amqp:// or amqps://. User and password are
	// percent-encoded. They never appear in logs or errors.
	URL string
	// URLs are further nodes of the same cluster. Those and URL are tried in a
	// random order, each before one is tried again; after a lost connection the
	// others come first.
	URLs []string
	// Login returns user and password, instead of those of the URLs, each time a
	// connection is made: from a file or a vault where passwords are renewed. Its
	// errors count as a broker that does not answer, and must not contain the
	// password. ctx ends with DialTimeout.
	Login func(ctx context.Context) (username, password string, err error)
	// TLS configures amqps: roots, client certificates, server name. Default:
	// the system's roots and the host of the URL.
	TLS *tls.Config
	// GetTLS returns the TLS configuration at each handshake, instead of TLS; see
	// package tlsfiles. The client copies what it returns.
	GetTLS func() *tls.Config
	// ExternalAuth authenticates by the client certificate (SASL EXTERNAL; the
	// broker needs rabbitmq_auth_mechanism_ssl) instead of the URL's user.
	ExternalAuth bool

	// Dial makes the connection below AMQP and TLS, instead of the default TCP
	// dialer: in memory to an amqptest.Server, through a proxy, over a socket with
	// options of its own. Network is "tcp" and addr host and port of the URL; ctx
	// ends with DialTimeout.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)

	// Strategy delays the messages. Default: dlx.NewBucket with the clock layout
	// (10 ms) on quorum queues.
	Strategy Strategy
	// QueueType of destination queues that the client creates, default quorum.
	QueueType topology.QueueType
	// Declare is what the client may create, default DeclareMissing.
	Declare Declaration
	// Destinations sets retry policies and dead-letter queues by destination
	// queue; queues that are not listed take the defaults.
	Destinations []topology.Destination

	// ConnectionName is shown by the broker's management, default "rabbitdelay".
	ConnectionName string
	// Heartbeat interval, default 10 s, 1 s to 65535 s. A dead connection is
	// noticed within three of them. "?heartbeat=SECONDS" in a URL overrides it;
	// 0 there takes the broker's own.
	Heartbeat time.Duration
	// DialTimeout bounds the TCP, TLS and AMQP handshakes together, default 10 s.
	DialTimeout time.Duration
	// ReconnectMin and ReconnectMax bound the jittered exponential back-off
	// between attempts to connect, defaults 100 ms and 10 s. The client never
	// gives up.
	ReconnectMin, ReconnectMax time.Duration
	// SendTimeout bounds Send and SendBatch when their context has no deadline,
	// default 30 s.
	SendTimeout time.Duration
	// RecheckInterval is how long a destination counts as declared and bound,
	// default 1 min. The first send after that checks it again in the
	// background, so that a deleted destination is back before most of its
	// waiting messages are due.
	RecheckInterval time.Duration
	// MaxRouteQueues is how many route queues this client may make, default
	// 100, 1 to 100,000. An exchange destination needs one for each routing
	// key to which something is delayed, and it stays for ever; existing ones do not
	// count. Beyond the limit
	// Send fails with a *topology.DestinationError before creating anything, so
	// that order numbers in routing keys do not fill the broker.
	MaxRouteQueues int
	// MaxInFlight is the number of messages that may await their confirm,
	// default 1024, half of which may be for one queue; a body over 16 KiB
	// counts as several messages. Send waits at the limit. Messages of a queue
	// that has confirmed nothing for a second do not count.
	MaxInFlight int
	// MaxBody is the largest body accepted, in bytes, default 16 MiB (the
	// broker's own max_message_size since 4.0). If the broker's limit is lower,
	// the broker refuses the first message over it, and the client refuses
	// further ones for a minute.
	MaxBody int
	// HeldBytes is how many bytes of messages each consumer makes room for while it holds
	// them until their instant (Lead), default 64 MiB; WithHeldBytes, which says more, takes
	// precedence.
	HeldBytes int

	// Lead is how long before its instant a delayed message reaches the consumer of its
	// queue, which holds it until then: so neither the resolution nor the broker's own
	// lateness, as long as it is shorter, makes it late. Default 0, at most a minute. Only
	// consumers that hold messages may read such queues: those of this package, and
	// others as docs/wire.md says. A lead of its own (Destinations) takes precedence;
	// exchanges and the broker's queues for replies have no other. The ttl strategy has
	// none, nor does a message with a Tolerance.
	Lead time.Duration

	// Now is this process's wall clock, default time.Now: a test gives one that is wrong.
	Now func() time.Time
	// Logger, default silent, but for one line to slog.Default while Open waits in
	// vain.
	Logger *zap.Logger
	// Hooks observe sends, handlers and connections; see Hook.
	Hooks []Hook
}

// WithDefaults returns the configuration with its defaults filled in.
func (c Config) WithDefaults() Config {
	setDefault(&c.QueueType, topology.Quorum)
	setDefault(&c.Declare, DeclareMissing)
	setDefault(&c.ConnectionName, "rabbitdelay")
	setDefault(&c.Heartbeat, DefaultHeartbeat)
	setDefault(&c.DialTimeout, DefaultDialTimeout)
	setDefault(&c.ReconnectMin, DefaultReconnectMin)
	setDefault(&c.ReconnectMax, max(DefaultReconnectMax, c.ReconnectMin))
	setDefault(&c.SendTimeout, DefaultSendTimeout)
	setDefault(&c.RecheckInterval, DefaultRecheckInterval)
	setDefault(&c.MaxInFlight, DefaultMaxInFlight)
	setDefault(&c.MaxBody, DefaultMaxBody)
	setDefault(&c.HeldBytes, DefaultHeldBytes)
	setDefault(&c.MaxRouteQueues, DefaultMaxRouteQueues)
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Dial == nil {
		c.Dial = (&net.Dialer{}).DialContext
	}
	return c
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Validate checks every field, after WithDefaults, and reports all problems at
// once. An error about a value is also a *topology.FieldError.
func (c Config) Validate() error {
	var errs []error
	bad := func(field, format string, args ...any) {
		errs = append(errs, &configError{fmt.Errorf("%s: %s", field, fmt.Sprintf(format, args...))})
	}
	want := func(ok bool, field string, value any, bound string) {
		if !ok {
			errs = append(errs, &configError{&topology.FieldError{Field: field, Value: value, Want: bound}})
		}
	}
	within := func(field string, v, lo, hi time.Duration) {
		want(v >= lo && v <= hi, field, v, topology.FormatDuration(lo)+" to "+topology.FormatDuration(hi))
	}
	count := func(field string, n, hi int) { want(n >= 1 && n <= hi, field, n, fmt.Sprintf("1 to %d", hi)) }

	if c.URL != "" || len(c.URLs) == 0 {
		if _, err := brokerurl.Parse(c.URL); err != nil {
			bad("URL", "%v", err)
		}
	}
	for i, u := range c.URLs {
		if _, err := brokerurl.Parse(u); err != nil {
			bad(fmt.Sprintf("URLs[%d]", i), "%v", err)
		}
	}
	want(c.QueueType == topology.Quorum || c.QueueType == topology.Classic, "QueueType", string(c.QueueType), "quorum or classic")
	want(slices.Contains([]Declaration{DeclareMissing, DeclareListed, DeclareNothing}, c.Declare), "Declare", string(c.Declare), "missing, listed or nothing")
	want(len(c.ConnectionName) <= maxConnectionName, "ConnectionName", c.ConnectionName, fmt.Sprintf("of at most %d bytes", maxConnectionName))
	within("Heartbeat", c.Heartbeat, time.Second, 65535*time.Second)
	within("DialTimeout", c.DialTimeout, 10*time.Millisecond, time.Hour)
	within("ReconnectMin", c.ReconnectMin, time.Millisecond, time.Hour)
	within("ReconnectMax", c.ReconnectMax, c.ReconnectMin, 24*time.Hour)
	within("SendTimeout", c.SendTimeout, time.Millisecond, 24*time.Hour)
	within("RecheckInterval", c.RecheckInterval, 10*time.Millisecond, 24*time.Hour)
	count("MaxInFlight", c.MaxInFlight, 1<<20)
	count("MaxBody", c.MaxBody, 512<<20) // the broker's own limit
	count("HeldBytes", c.HeldBytes, math.MaxInt32)
	count("MaxRouteQueues", c.MaxRouteQueues, 100_000)
	within("Lead", c.Lead, 0, topology.MaxLead)
	unit := func(field string, d time.Duration) {
		if reason := units.Duration(d); reason != "" {
			bad(field, "%s", reason)
		}
	}
	unit("Lead", c.Lead)
	for i, d := range c.Destinations {
		if d.Lead != nil {
			within(fmt.Sprintf("Destinations[%d].Lead", i), *d.Lead, 0, topology.MaxLead)
			unit(fmt.Sprintf("Destinations[%d].Lead", i), *d.Lead)
		}
		if d.Retry == nil {
			continue
		}
		if err := d.Retry.Validate(); err != nil {
			bad(fmt.Sprintf("Destinations[%d].Retry", i), "%v", err)
		}
	}
	return errors.Join(errs...)
}

// destination returns a queue with its configured retry policy and dead-letter queue.
func (c Config) destination(queue string) topology.Destination {
	for _, d := range c.Destinations {
		if d.Queue == queue {
			return d
		}
	}
	return topology.Destination{Queue: queue}
}

// lead returns how long before its instant a message reaches a destination.
func (c Config) lead(dest topology.Destination) time.Duration {
	for i := range c.Destinations {
		if d := &c.Destinations[i]; d.Lead != nil && d.Queue == dest.Queue && d.Exchange == dest.Exchange && d.RoutingKey == dest.RoutingKey {
			return *d.Lead
		}
	}
	if dest.ToExchange() || dest.ServerNamed() {
		return 0
	}
	return c.Lead
}

// anyLead returns a lead that messages of the client may have, and its field; 0 for none.
func (c Config) anyLead() (field string, lead time.Duration) {
	for i, d := range c.Destinations {
		if d.Lead != nil && *d.Lead > 0 {
			return fmt.Sprintf("Destinations[%d].Lead", i), *d.Lead
		}
	}
	return "Lead", c.Lead
}

// wire is how a client of this configuration connects.
func (c Config) wire() wire.Config {
	nodes := c.URLs
	if c.URL != "" || len(c.URLs) == 0 {
		nodes = append([]string{c.URL}, c.URLs...)
	}
	return wire.Config{
		Nodes: nodes, Name: c.ConnectionName, Login: c.Login, ExternalAuth: c.ExternalAuth, TLS: c.tlsFor, Dial: c.Dial,
		Heartbeat: c.Heartbeat, DialTimeout: c.DialTimeout, ReconnectMin: c.ReconnectMin, ReconnectMax: c.ReconnectMax,
		Failed: func(f wire.Failure) error { e := DialError(f); return &e }, Permanent: permanent, Log: c.Logger,
	}
}

// tlsFor returns the TLS configuration of one handshake.
func (c Config) tlsFor(uri amqp.URI) (*tls.Config, error) {
	switch {
	case c.GetTLS != nil:
		return c.GetTLS().Clone(), nil
	case c.TLS != nil:
		return c.TLS.Clone(), nil
	}
	return tlsfiles.Files{CA: uri.CACertFile, Cert: uri.CertFile, Key: uri.KeyFile, ServerName: uri.ServerName}.Read()
}

// configError is an error about one field.
type configError struct{ err error }

func (e *configError) Error() string        { return ErrConfig.Error() + ": " + e.err.Error() }
func (e *configError) Unwrap() error        { return e.err }
func (e *configError) Is(target error) bool { return target == ErrConfig }

// maxConnectionName leaves it readable in the management's lists.
const maxConnectionName = 200

// listed refuses, with DeclareListed, what is not in Config.Destinations: neither
// a destination there nor the dead-letter queue of one. A queue that the broker has named
// cannot be listed, and nobody creates it by mistake.
func (c *Client) listed(dest topology.Destination) error { return c.cfg.Listed(dest) }

// Listed is that of the client's configuration.
func (c *Client) Listed(dest topology.Destination) error { return c.cfg.Listed(dest) }

// Listed returns the error with which a client of this configuration refuses a
// destination that DeclareListed leaves out; nil with another Declare.
func (c Config) Listed(dest topology.Destination) error {
	if c.Declare != DeclareListed || dest.ServerNamed() {
		return nil
	}
	var names []string
	known := false
	for _, d := range c.Destinations {
		names = append(names, d.String())
		known = known || d.Queue == dest.Queue && d.Exchange == dest.Exchange && d.RoutingKey == dest.RoutingKey
		if !d.ToExchange() {
			known = known || d.DeadLetterQueue() == dest.Queue
		}
	}
	if known {
		return nil
	}
	return &unlistedError{&topology.DestinationError{Destination: dest,
		Reason: fmt.Sprintf("is not a destination of the configuration, and only those may be used (declare: listed): %s", some(names))}, c.Destinations}
}

// unlistedError is that of Listed.
type unlistedError struct {
	*topology.DestinationError

	list []topology.Destination
}

func (e *unlistedError) Unwrap() error { return e.DestinationError }

// Listed are the destinations of which none is the one that is refused.
func (e *unlistedError) Listed() []topology.Destination { return e.list }

// maxNamed is how many destinations an error names.
const maxNamed = 10

func some(names []string) string {
	if more := len(names) - maxNamed; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNamed], ", "), more)
	}
	return strings.Join(names, ", ")
}

// strategy is the one that was given, or the default. It refuses one that has no delay less
// a lead.
func (c Config) strategy() (Strategy, error) {
	if c.Strategy == nil {
		return dlx.NewBucket(dlx.BucketConfig{})
	}
	if field, lead := c.anyLead(); lead > 0 && c.Strategy.Name() == "ttl" {
		return nil, &configError{&topology.FieldError{Field: field, Value: lead, Want: "0 with the ttl strategy, which has only the delays that are declared"}}
	}
	return c.Strategy, nil
}

// Strategy turns a delay into a place to publish. It does no I/O, so that the same
// configuration has the same answer in every process. Packages dlx and plugin
// implement it without importing this package.
type Strategy interface {
	// Name is ttl, bucket, nservicebus, celery, plugin, native or auto.
	Name() string
	// Prefix begins the names of all broker objects, also of those that the client
	// makes: route queues, the lock.
	Prefix() string
	// Topology is what must exist on the broker, the delivery exchange and the
	// parked queue included.
	Topology() topology.Topology
	// Bindings connect the delivery exchange with one destination. They assume
	// that the destination's target queue exists.
	Bindings(dest topology.Destination) []topology.Binding
	// Route returns where to publish a message that is due after delay. The
	// route's own delay is at least delay; with a tolerance it may be up to
	// delay + tolerance if that saves hops. A delay of 0 goes straight to the
	// destination. Errors are *topology.DelayError or *topology.KeyError.
	Route(dest topology.Destination, delay, tolerance time.Duration) (topology.Route, error)
	// MaxDelay is the longest delay that Route accepts.
	MaxDelay() time.Duration
}

// Canary is a Strategy whose routes may have an InstantHeader. A broker that
// ignores the header would deliver their messages at once, so a Client sends none
// of them on a connection before messages of its own have proven, on that
// connection, that they wait.
type Canary interface {
	// Canary returns the bindings that lead to a queue, which the client declares for
	// it, and a route to there through each queue in which messages wait. Without
	// routes there is nothing to prove.
	Canary(queue string) ([]topology.Binding, []topology.Route)
}

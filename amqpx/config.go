package amqpx

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"net"
	"reflect"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/units"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/wire"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/internal/brokerurl"
	"github.com/rabbitdelay/rabbitdelay/internal/tlsfiles"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Declaration says what a Client may create on the broker.
type Declaration string

const (
	// DeclareMissing creates the strategy's topology, and destination queues that do not exist. The client needs the
	// configure permission. This is the default.
	DeclareMissing Declaration = "missing"
	// DeclareListed creates the strategy's topology and the destinations in Config.Destinations. Any other destination
	// is refused with a *topology.DestinationError, so that a typo does not create a queue without consumers.
	// Broker-named reply queues and the dead-letter queues of listed destinations need not be listed.
	DeclareListed Declaration = "listed"
	// DeclareNothing checks that objects exist and creates none. Use it for clients without the configure permission,
	// after `rabbitdelay apply`. If the user is not allowed to see an object (since RabbitMQ 4.3, that needs some
	// permission on it), the client assumes that the object exists. The client re-binds its destinations, because AMQP
	// offers no other way to check a binding. For that it needs write on the destination's queue and read on the
	// delivery exchange. Without these permissions Send fails with a *topology.DestinationError.
	DeclareNothing Declaration = "nothing"
)

// Defaults of Config and of consumers. defaultMaxBody and defaultHeldBytes are in bytes.
const (
	defaultHeartbeat       = 10 * time.Second
	defaultDialTimeout     = 10 * time.Second
	defaultReconnectMin    = 100 * time.Millisecond
	defaultReconnectMax    = 10 * time.Second
	defaultSendTimeout     = 30 * time.Second
	defaultMaxInFlight     = 1024
	defaultRecheckInterval = time.Minute
	defaultMaxBody         = 16 << 20
	defaultMaxRouteQueues  = 100

	defaultConcurrency  = 16
	defaultDrainTimeout = 30 * time.Second
	defaultHeldBytes    = 64 << 20
)

// Config configures a Client. Only one of URL and URLs is required. Any other field that is zero has the default given
// here.
type Config struct {
	// URL is the broker's URL, amqp:// or amqps://. The user and password in it are percent-encoded. The password never
	// appears in logs or errors.
	URL string
	// URLs lists further nodes of the same cluster. The client tries these and URL in random order, each of them
	// once before it tries any of them again. After a lost connection it tries the other nodes first.
	URLs []string
	// Login returns the user and password to use in place of those in the URLs. It is called for each new connection,
	// so it can read credentials that are rotated, from a file or a vault for example. If it fails, the client tries
	// again as if the broker did not answer. The error must not contain the password, because it is logged. The context
	// ends after DialTimeout.
	Login func(ctx context.Context) (username, password string, err error)
	// TLS configures amqps connections: root CAs, client certificates and server name. By default the client uses the
	// URL's parameters cacertfile, certfile, keyfile and server_name_indication and, without them, the system's root
	// CAs, no client certificate and the URL's host.
	TLS *tls.Config
	// GetTLS returns the TLS configuration for each handshake and takes precedence over TLS. Use it for certificates
	// that are renewed while the process runs. Clients made by package config use it to read their certificate files
	// again. The client clones the returned value.
	GetTLS func() *tls.Config
	// ExternalAuth authenticates with the client certificate (SASL EXTERNAL) instead of a user and password from URL or
	// Login. The broker needs the plugin rabbitmq_auth_mechanism_ssl.
	ExternalAuth bool

	// Dial makes the network connection below AMQP and TLS, in place of the default TCP dialer. Use it to connect
	// in memory to an amqptest.Server, through a proxy, or over a socket with special options. network is "tcp",
	// and addr is the host and port of the URL. Its ctx ends after DialTimeout.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)

	// Strategy delays the messages. The default is dlx.NewBucket with the clock layout (10 ms) on quorum queues.
	Strategy Strategy
	// QueueType is the type of the destination queues that the client creates. The default is quorum.
	QueueType topology.QueueType
	// Declare says what the client may create on the broker. The default is DeclareMissing.
	Declare Declaration
	// Destinations sets the retry policy, dead-letter queue and lead of each listed destination. Other destinations
	// have the defaults, or are refused (see DeclareListed).
	Destinations []topology.Destination

	// ConnectionName is the first part of the connection names that RabbitMQ's management UI shows, at most 200 bytes.
	// The second part says what the connection is for, such as "publish". The default is "rabbitdelay".
	ConnectionName string
	// Heartbeat is the heartbeat interval, 1 s to 65535 s. The default is 10 s. A dead connection is noticed
	// within three intervals. A "?heartbeat=SECONDS" in a URL overrides it, where 0 means the broker's own
	// interval.
	Heartbeat time.Duration
	// DialTimeout bounds the TCP, TLS and AMQP handshakes together. The default is 10 s.
	DialTimeout time.Duration
	// ReconnectMin is the pause after the first failed attempt to connect. It doubles with each further attempt, up to
	// ReconnectMax. A random part of each pause, up to half of it, is left out, so that many clients do not connect at
	// the same moment. The defaults are 100 ms and 10 s. The client never stops trying.
	ReconnectMin, ReconnectMax time.Duration
	// SendTimeout bounds Send, SendBatch and SendEach if their context has no deadline. The default is 30 s.
	SendTimeout time.Duration
	// RecheckInterval is how long the client assumes that a destination is still declared and bound. The default
	// is 1 min. The first send after that checks the destination again in the background, so a deleted destination
	// is restored before most of the messages waiting for it are due.
	RecheckInterval time.Duration
	// MaxRouteQueues is how many route queues this client may create, 1 to 100,000. The default is 100. An exchange
	// destination needs a route queue for each routing key with delayed messages, and a route queue is never deleted.
	// Route queues that already exist do not count. At the limit, Send fails with a *topology.DestinationError before
	// it creates anything, so that order numbers in routing keys do not fill the broker with queues.
	MaxRouteQueues int
	// MaxInFlight is the number of messages that may await their confirm. The default is 1024, of which one queue may
	// use half. A body over 16 KiB counts as several messages. At the limit, Send waits. When a queue has confirmed
	// nothing for a second, its messages no longer count.
	MaxInFlight int
	// MaxBody is the largest accepted body in bytes. The default is 16 MiB, which is also the default of the broker's
	// max_message_size since 4.0. If the broker's limit is lower, the broker refuses the first message above its limit,
	// and the client refuses further such messages for a minute.
	MaxBody int
	// HeldBytes limits how far each consumer enlarges its buffer while it holds messages until their due time
	// (see Lead): it buffers more messages than its prefetch only up to this total size in bytes. The default
	// is 64 MiB. WithHeldBytes explains the limit, and overrides it for one consumer.
	HeldBytes int

	// Lead is how long before its due time a delayed message is delivered to the consumer of its queue, which
	// holds it until then. With a lead, neither the strategy's resolution nor the broker's own lateness makes a
	// message late as long as they are shorter than the lead. The default is 0, the maximum is a minute.
	//
	// A message is delivered up to a second earlier than its lead if it then passes through fewer delay queues. Most
	// delays below a minute then need only one queue, which costs the broker less than any resolution without a lead.
	//
	// Only consumers that hold messages may consume from such queues: those of this package, and others that implement
	// docs/wire.md. A Lead in Destinations takes precedence. For exchanges and broker-named reply queues, only a Lead
	// in Destinations applies. A message with a Tolerance has no lead. A lead with the ttl strategy is an error.
	Lead time.Duration

	// Now returns this process's wall clock time. The default is time.Now. Tests use it to simulate a wrong clock.
	Now func() time.Time
	// Logger receives the client's log. Use SlogLogger for a logger of log/slog. By default the client logs nothing,
	// except one line to slog.Default when Open has waited for the broker for 3 s.
	Logger *zap.Logger
	// Hooks observe sends, handlers and connections. See Hook.
	Hooks []Hook
}

// WithDefaults returns the configuration with the defaults filled in, except for Strategy, whose default Open creates.
func (c Config) WithDefaults() Config {
	setDefault(&c.QueueType, topology.Quorum)
	setDefault(&c.Declare, DeclareMissing)
	setDefault(&c.ConnectionName, "rabbitdelay")
	setDefault(&c.Heartbeat, defaultHeartbeat)
	setDefault(&c.DialTimeout, defaultDialTimeout)
	setDefault(&c.ReconnectMin, defaultReconnectMin)
	setDefault(&c.ReconnectMax, max(defaultReconnectMax, c.ReconnectMin))
	setDefault(&c.SendTimeout, defaultSendTimeout)
	setDefault(&c.RecheckInterval, defaultRecheckInterval)
	setDefault(&c.MaxInFlight, defaultMaxInFlight)
	setDefault(&c.MaxBody, defaultMaxBody)
	setDefault(&c.HeldBytes, defaultHeldBytes)
	setDefault(&c.MaxRouteQueues, defaultMaxRouteQueues)
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

// Validate reports all problems of the configuration together. Call it on the result of WithDefaults. Every error wraps
// ErrConfig. For a value that is out of range, or not one of the allowed values, it also wraps a *topology.FieldError.
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
	count("MaxBody", c.MaxBody, 512<<20) // the highest max_message_size that a broker accepts
	count("HeldBytes", c.HeldBytes, math.MaxInt32)
	count("MaxRouteQueues", c.MaxRouteQueues, 100_000)
	within("Lead", c.Lead, 0, topology.MaxLead)
	unit := func(field string, d time.Duration) {
		if reason := units.Duration(d); reason != "" {
			bad(field, "%s", reason)
		}
	}
	unit("Lead", c.Lead)
	prefix := topology.DefaultPrefix
	switch reason := unusable(c.Strategy); {
	case reason != "":
		bad("Strategy", "%s", reason)
	case c.Strategy != nil:
		prefix = c.Strategy.Prefix()
	}
	first := map[string]int{}
	for i, d := range c.Destinations {
		name := d.String()
		if err := d.Validate(prefix); err != nil {
			bad(fmt.Sprintf("Destinations[%d]", i), "%v", err)
		} else if before, twice := first[name]; twice {
			bad(fmt.Sprintf("Destinations[%d]", i), "%s is Destinations[%d] too; list each destination once", name, before)
		} else {
			first[name] = i
		}
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

// unusable returns why a strategy cannot be used, or "". Without this check, a strategy that was not made by its
// constructor, such as the nil pointer that a constructor returns with an error, would panic in a goroutine of this
// package.
func unusable(s Strategy) (reason string) {
	if s == nil {
		return ""
	}
	if v := reflect.ValueOf(s); v.Kind() == reflect.Pointer && v.IsNil() {
		return fmt.Sprintf("a nil %T; use the result of its constructor, whose error says why it is nil", s)
	}
	const zero = "a %T that was not created by its constructor; use the result of the constructor"
	defer func() {
		if recover() != nil {
			reason = fmt.Sprintf(zero, s)
		}
	}()
	if s.Name() == "" || s.Prefix() == "" || s.MaxDelay() <= 0 {
		return fmt.Sprintf(zero, s)
	}
	return ""
}

// destination returns the configured destination of a queue, or one with the defaults if the queue is not in
// Destinations.
func (c Config) destination(queue string) topology.Destination {
	for _, d := range c.Destinations {
		if d.Queue == queue {
			return d
		}
	}
	return topology.Destination{Queue: queue}
}

// lead returns the configured lead of a destination.
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

// anyLead returns the first positive lead in the configuration and its field's name, or 0 if there is none.
func (c Config) anyLead() (field string, lead time.Duration) {
	for i, d := range c.Destinations {
		if d.Lead != nil && *d.Lead > 0 {
			return fmt.Sprintf("Destinations[%d].Lead", i), *d.Lead
		}
	}
	return "Lead", c.Lead
}

// wire returns the connection settings in the form that package wire uses.
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

// tlsFor returns the TLS configuration for one handshake with the node of a URL. The caller may modify it.
func (c Config) tlsFor(uri amqp.URI) (*tls.Config, error) {
	switch {
	case c.GetTLS != nil:
		return c.GetTLS().Clone(), nil
	case c.TLS != nil:
		return c.TLS.Clone(), nil
	}
	return tlsfiles.Files{CA: uri.CACertFile, Cert: uri.CertFile, Key: uri.KeyFile, ServerName: uri.ServerName}.Read()
}

// configError is an error about one field, and wraps ErrConfig in addition to err.
type configError struct{ err error }

func (e *configError) Error() string        { return ErrConfig.Error() + ": " + e.err.Error() }
func (e *configError) Unwrap() error        { return e.err }
func (e *configError) Is(target error) bool { return target == ErrConfig }

// maxConnectionName is the maximum length of ConnectionName in bytes. It keeps the lists of the management UI readable.
const maxConnectionName = 200

func (c *Client) listed(dest topology.Destination) error { return c.cfg.Listed(dest) }

// Listed returns the result of Config.Listed for the client's configuration.
func (c *Client) Listed(dest topology.Destination) error {
	if err := c.opened(); err != nil {
		return err
	}
	return c.cfg.Listed(dest)
}

// Listed returns the error with which a client refuses a destination that is missing from Destinations if Declare is
// DeclareListed. It returns nil if the destination is listed, is the dead-letter queue of a listed destination, or is a
// broker-named queue, which cannot be created by mistake. With any other Declare, it returns nil.
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
		Reason: fmt.Sprintf("is not in the configuration, and only these destinations may be used (declare: listed): %s", some(names))}, c.Destinations}
}

// unlistedError is the error that Config.Listed returns.
type unlistedError struct {
	*topology.DestinationError

	list []topology.Destination
}

func (e *unlistedError) Unwrap() error { return e.DestinationError }

// Listed returns the destinations in the configuration.
func (e *unlistedError) Listed() []topology.Destination { return e.list }

// maxNamed is the maximum number of destinations that an error names.
const maxNamed = 10

// some joins the first maxNamed names, and adds the number of the others.
func some(names []string) string {
	if more := len(names) - maxNamed; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNamed], ", "), more)
	}
	return strings.Join(names, ", ")
}

// strategy returns the configured strategy, or the default. It refuses the ttl strategy together with a lead,
// because a declared delay minus a lead is not a declared delay.
func (c Config) strategy() (Strategy, error) {
	if c.Strategy == nil {
		return dlx.NewBucket(dlx.BucketConfig{})
	}
	if field, lead := c.anyLead(); lead > 0 && c.Strategy.Name() == "ttl" {
		return nil, &configError{&topology.FieldError{Field: field, Value: lead, Want: "0 with the ttl strategy, which supports only declared delays"}}
	}
	return c.Strategy, nil
}

// Strategy decides where to publish a message so that it is delivered after a delay. It does no I/O, so the same
// configuration gives the same answers in every process. Packages dlx and plugin implement it without importing
// this package.
type Strategy interface {
	// Name returns the strategy's name. The names of this module's strategies are ttl, bucket, nservicebus, celery,
	// plugin, native and auto.
	Name() string
	// Prefix returns the prefix of the names of all broker objects, including those that the client creates: route
	// queues and the lock.
	Prefix() string
	// Topology returns the objects that must exist on the broker, including the delivery exchange and the parked
	// queue.
	Topology() topology.Topology
	// Bindings returns the bindings that connect the delivery exchange to a destination. The destination's target
	// queue must exist before they are declared.
	Bindings(dest topology.Destination) []topology.Binding
	// Route returns where to publish a message that is due after delay. The delay of the route is at least delay. With
	// a tolerance, it may be up to delay + tolerance if that saves hops. A delay of 0 uses no delay queue. Errors are
	// of type *topology.DelayError, *topology.KeyError or *topology.DestinationError.
	Route(dest topology.Destination, delay, tolerance time.Duration) (topology.Route, error)
	// MaxDelay returns the longest delay that Route accepts.
	MaxDelay() time.Duration
}

// InstantProber is implemented by strategies whose routes may have an InstantHeader. A broker that ignores this header
// would deliver the messages immediately. Therefore a Client uses such routes on a connection only after test messages
// on that connection have arrived with their delay.
type InstantProber interface {
	// Canary returns the bindings that lead to a test queue, which the client declares, and one route to it
	// through each queue in which messages wait. If there are no routes, nothing needs to be tested.
	Canary(queue string) ([]topology.Binding, []topology.Route)
}

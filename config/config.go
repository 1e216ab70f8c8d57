package config

import (
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/yamldoc"
)

// Config holds all settings of a process. Load makes one. In YAML, the path of a setting is its
// field's name in lower case with underscores.
type Config struct {
	Broker   Broker
	Delay    Delay
	Database Database
	Serve    Serve
	// Topology has the exchanges, queues, bindings and destinations of the file, without
	// what the strategy needs.
	Topology topology.Topology
	// Schedules are the file's recurring tasks, for schedule.Schedules.Apply.
	Schedules []schedule.Recurring

	file    string
	origins yamldoc.Places // of the values that were given, by path
}

// Broker is how to connect to the broker.
type Broker struct {
	// URL of the broker, amqp:// or amqps://. Default: the environment variable AMQP_URL.
	// Without an address nothing connects, see ErrNoBroker.
	URL URL
	// URLs are nodes of the same cluster, beside URL or instead of it. All are tried
	// in a random order.
	URLs []URL
	// Username and Password replace those of the URLs. PasswordFile names a file with the
	// password instead, which is read for each connection.
	Username     string
	Password     Secret
	PasswordFile string
	// ManagementURL of the management API, http:// or https://, with user and
	// password if they differ from the broker's. Default: port 15672 (15671 with amqps) of those
	// brokers' hosts whose AMQP port is the default; one that answers is used.
	ManagementURL URL
	TLS           TLS
	// Config is the client's own part: ExternalAuth, ConnectionName, Declare, Heartbeat,
	// DialTimeout, ReconnectMin, ReconnectMax, SendTimeout, MaxInFlight, MaxBody,
	// HeldBytes and MaxRouteQueues are settings. In Go 0 means the default; an explicit 0 in a file is an
	// error. Config.Client sets its addresses, login, strategy, destinations and logger.
	amqpx.Config `json:"-"`
}

// TLS names PEM files for amqps, and the name in the broker's certificate.
type TLS struct {
	CA         string // certificates to trust instead of the system's
	Cert       string // client certificate
	Key        string // its private key
	ServerName string // default: the host of the URL
}

// Names of strategies.
const (
	StrategyBucket = "bucket"
	StrategyTTL    = "ttl"
	StrategyPlugin = "plugin"
	StrategyNative = "native"
	StrategyAuto   = "auto"
)

// Delay is how messages are delayed.
type Delay struct {
	// Strategy is bucket (the default), ttl, plugin, native or auto.
	Strategy string
	// Prefix of the names of delay objects, default "delay".
	Prefix string
	// QueueType of delay queues and of destination queues that do not stand under
	// queues: quorum (the default) or classic.
	QueueType topology.QueueType
	// TopicPermissions has the broker check a user's topic permissions for each
	// message; see dlx.BucketConfig. Default false.
	TopicPermissions bool

	// Lead is how long before its instant a message reaches its consumer, which holds it
	// until then; see amqpx.Config. Default 0, with Exact 400 ms.
	Lead time.Duration
	// Exact is a lead for messages to the millisecond, and a resolution to go with it: unless
	// they are given, Lead is 400 ms and Bucket.Resolution 100 ms. All consumers must hold
	// messages: those of amqpx do.
	Exact bool

	Bucket Layout
	TTL    TTL
	Plugin Plugin
	Native Native
	// Previous are earlier layouts. Destinations stay bound to them, so that what still waits
	// in their queues arrives.
	Previous []Previous
}

// Previous is a layout in which messages may still wait.
type Previous struct {
	Strategy  string             // bucket (the default), ttl, plugin or native
	QueueType topology.QueueType // default Delay.QueueType

	// Of bucket, as in Layout.
	Layout     string
	Radices    []int
	Resolution time.Duration

	Delays []time.Duration // of ttl
	Queues int             // of native
}

// Layout of the bucket strategy; see dlx.BucketConfig, and dlx.LevelsConfig for the
// layouts of other systems.
type Layout struct {
	Layout     string // clock (the default), hex, binary, nservicebus or celery
	Radices    []int  // an explicit layout instead, lowest position first
	Resolution time.Duration
}

// TTL strategy; see dlx.TTLConfig.
type TTL struct {
	Delays  []time.Duration
	RoundUp bool
}

// Plugin strategy. With the auto strategy, the plugin takes delays from Min to Max, if the
// broker has it; none if both are 0.
type Plugin struct {
	Min time.Duration
	Max time.Duration // default: 2^32-1 ms, about 49 days
}

// Native strategy; see dlx.NativeConfig. With the auto strategy and Auto, it takes all delays
// that neither the ttl strategy nor the plugin takes, if the broker delays by an instant.
type Native struct {
	Queues int
	Auto   bool
}

// Database is where idempotency records and tasks live.
type Database struct {
	// URL is postgres://…, mysql://… or sqlite:path; see OpenDB.
	URL URL
}

// Serve is how rabbitdelay serve answers.
type Serve struct {
	// Listen is HOST:PORT, default 127.0.0.1:8086.
	Listen string
	// Users is the file of users and tokens.
	Users string
	// PathPrefix comes before all paths, such as /rabbitdelay.
	PathPrefix string
	// TrustedProxy is the address or network of proxies whose X-Forwarded-For is trusted.
	TrustedProxy string
	// Title stands at the top of every page, default rabbitdelay.
	Title string
	// Color is that of a line above all pages, such as #c62828.
	Color string
	// TraceURL is a link to a trace, in which {id} stands for its id.
	TraceURL string
	// Discarded is the directory in which discards of the console keep messages.
	Discarded string
	// KeepAudit is how long the audit and the jobs are kept, default 90 days, at least an hour.
	KeepAudit time.Duration
	// TLS files for https.
	TLS ServeTLS
}

// ServeTLS names PEM files.
type ServeTLS struct {
	Cert string // certificate chain
	Key  string // its private key
}

// Proxy returns the network of TrustedProxy; the zero value without one.
func (s *Serve) Proxy() (netip.Prefix, error) {
	switch {
	case s.TrustedProxy == "":
		return netip.Prefix{}, nil
	case strings.Contains(s.TrustedProxy, "/"):
		return netip.ParsePrefix(s.TrustedProxy)
	}
	a, err := netip.ParseAddr(s.TrustedProxy)
	if err != nil {
		return netip.Prefix{}, err
	}
	return a.Prefix(a.BitLen())
}

// Loopback reports whether Listen can be reached from this machine only.
func (s *Serve) Loopback() bool {
	host, _, err := net.SplitHostPort(s.Listen)
	if err != nil {
		return false
	}
	if host == "localhost" {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.IsLoopback()
}

// FirstURL returns the broker's URL, or the first of several; empty for none.
func (c *Config) FirstURL() URL { return c.Broker.first() }

// DelayGiven reports whether a file, a flag or a variable sets the strategy or
// its layout; otherwise both are the defaults.
func (c *Config) DelayGiven() bool {
	for path := range c.origins {
		if strings.HasPrefix(path, "delay.") {
			return true
		}
	}
	return c.file != ""
}

// Destination returns the file's destination for a queue, or the queue with the defaults.
func (c *Config) Destination(queue string) topology.Destination {
	for _, d := range c.Topology.Destinations {
		if d.Queue == queue {
			return d
		}
	}
	return topology.Destination{Queue: queue}
}

// File returns the file from which the configuration was read; empty for none.
func (c *Config) File() string { return c.file }

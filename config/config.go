package config

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/internal/yamldoc"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Config contains all settings of a process. Load reads them. In YAML, a setting's path consists of the field names
// in lower case, with underscores between words.
type Config struct {
	Broker   Broker
	Delay    Delay
	Database Database
	Serve    Serve
	// Topology contains the exchanges, queues, bindings and destinations described in the file, without the objects
	// that the strategy needs.
	Topology topology.Topology
	// Schedules are the recurring tasks in the file. Pass them to schedule.RecurringTasks.Apply.
	Schedules []schedule.Recurring

	file    string
	origins yamldoc.Places // places of the values that were set, by path
}

// Broker contains the settings of the connection to the broker.
type Broker struct {
	// URL is the broker's address, amqp:// or amqps://. Default: the environment variable AMQP_URL. Without an address,
	// methods that connect return ErrNoBroker.
	URL URL
	// URLs are the addresses of nodes of the same cluster, in addition to URL or instead of it. A connection tries
	// all of them in a random order.
	URLs []URL
	// Username and Password replace those in the URLs. PasswordFile is the path of a file that contains the password
	// instead. It is read for each connection.
	Username     string
	Password     Secret
	PasswordFile string
	// ManagementURL is the address of the management API, http:// or https://, with user and password if they differ
	// from the broker's. Default: port 15672 (15671 with amqps) on the hosts of the broker addresses that use the
	// default AMQP port. The first one that answers is used.
	ManagementURL URL
	TLS           TLS
	// Config contains the client's own settings. Its fields ExternalAuth, ConnectionName, Declare, Heartbeat,
	// DialTimeout, ReconnectMin, ReconnectMax, SendTimeout, MaxInFlight, MaxBody, HeldBytes and MaxRouteQueues are
	// settings. In Go 0 means the default, but an explicit 0 in a file is an error. Config.Client fills in the
	// addresses, login, strategy, destinations and logger.
	amqpx.Config `json:"-"`
}

// TLS contains the paths of PEM files for amqps, and the host name expected in the broker's certificate.
type TLS struct {
	CA         string // certificates to trust instead of the system's certificates
	Cert       string // client certificate
	Key        string // its private key
	ServerName string // default: the host in the URL
}

// These are the names of the strategies.
const (
	StrategyBucket = "bucket"
	StrategyTTL    = "ttl"
	StrategyPlugin = "plugin"
	StrategyNative = "native"
	StrategyAuto   = "auto"
)

// Delay contains the settings of the delay strategy.
type Delay struct {
	// Strategy is bucket (the default), ttl, plugin, native or auto.
	Strategy string
	// Prefix is the prefix of the delay objects' names. Default "delay".
	Prefix string
	// QueueType is the type of delay queues, and of destination queues that are not listed under queues: quorum (the
	// default) or classic.
	QueueType topology.QueueType
	// TopicPermissions makes the broker check a user's topic permissions for each message; see dlx.BucketConfig.
	// Default false.
	TopicPermissions bool

	// Lead is how long before its due time a message is delivered to its consumer, which buffers it until then; see
	// amqpx.Config. Default 0, or 400 ms with Exact.
	Lead time.Duration
	// Exact delivers messages to the millisecond by means of a lead and a matching resolution: unless they are set,
	// Lead is 400 ms and Bucket.Resolution is 100 ms. All consumers must support leads, as those of amqpx do. Default
	// false.
	Exact bool

	Bucket Layout
	TTL    TTL
	Plugin Plugin
	Native Native
	// Previous are earlier layouts. Destinations stay bound to them, so that messages still waiting in their queues
	// arrive.
	Previous []Previous
}

// Previous describes an earlier layout in which messages may still wait.
type Previous struct {
	Strategy  string             // bucket (the default), ttl, plugin or native
	QueueType topology.QueueType // default Delay.QueueType

	// Layout, Radices and Resolution are settings of the bucket strategy, as in Layout.
	Layout     string
	Radices    []int
	Resolution time.Duration

	Delays []time.Duration // for ttl
	Queues int             // for native
}

// Layout contains the settings of the bucket strategy; see dlx.BucketConfig, and dlx.LevelsConfig for the layouts of
// other systems.
type Layout struct {
	Layout     string // clock (the default), hex, binary, nservicebus or celery
	Radices    []int  // a custom layout instead of Layout, lowest position first
	Resolution time.Duration
}

// TTL contains the settings of the ttl strategy; see dlx.TTLConfig.
type TTL struct {
	Delays  []time.Duration
	RoundUp bool
}

// Plugin contains the settings of the plugin strategy. With the auto strategy, the plugin is used for delays from Min
// to Max if the broker has it. If both are 0, auto does not use the plugin.
type Plugin struct {
	Min time.Duration
	Max time.Duration // default: 2^32-1 ms, about 49 days
}

// Native contains the settings of the native strategy; see dlx.NativeConfig. With the auto strategy and Auto, it is
// used for all delays that are covered by neither the ttl strategy nor the plugin, if the broker delays messages until
// a given time.
type Native struct {
	Queues int
	Auto   bool
}

// Database contains the settings of the database for idempotency records and tasks.
type Database struct {
	// URL is the database's address, postgres://…, mysql://… or sqlite:path; see OpenDB.
	URL URL
}

// Serve contains the settings of rabbitdelay serve.
type Serve struct {
	// Listen is the address to listen on, HOST:PORT. Default 127.0.0.1:8086.
	Listen string
	// Users is the path of the file with users and tokens.
	Users string
	// PathPrefix is a prefix of all paths, such as /rabbitdelay.
	PathPrefix string
	// Proxy describes the reverse proxy in front of serve.
	Proxy ServeProxy
	// Title is shown at the top of every page. Default rabbitdelay.
	Title string
	// Color is the color of a line at the top of all pages, such as #c62828.
	Color string
	// TraceURL is a template for links to traces, in which {id} is replaced by the trace's id.
	TraceURL string
	// Discarded is the directory in which the console stores the messages that it discards.
	Discarded string
	// KeepAudit is the retention time of the audit log and the jobs. Default 90 days, at least one hour.
	KeepAudit time.Duration
	// TLS contains the certificate files for https.
	TLS ServeTLS
}

// ServeTLS contains the paths of PEM files.
type ServeTLS struct {
	Cert string // certificate chain
	Key  string // its private key
}

// ServeProxy describes a reverse proxy in front of rabbitdelay serve. If UserHeader is set, the proxy has authenticated
// the user, and serve refuses requests that do not come from a trusted address.
type ServeProxy struct {
	// Trusted are the addresses and networks of the proxies, such as 10.0.0.0/8. Their X-Forwarded-For header is
	// trusted as well; login attempts are counted by the address in it.
	Trusted []string
	// UserHeader is the header with the name of the authenticated user, such as X-Forwarded-User.
	UserHeader string
	// RoleHeader is the header with the user's groups, separated by commas, such as X-Forwarded-Groups. Without it,
	// every user is a viewer.
	RoleHeader string
	// Operators and Viewers are the groups that make a user an operator or a viewer. Default operator and viewer.
	Operators, Viewers []string
}

// Networks returns the networks of Trusted. It returns an error that names the first item that is neither an address
// nor a network.
func (p *ServeProxy) Networks() ([]netip.Prefix, error) {
	list := make([]netip.Prefix, len(p.Trusted))
	for i, text := range p.Trusted {
		network, err := netip.ParsePrefix(text)
		if a, aerr := netip.ParseAddr(text); aerr == nil {
			network, err = a.Unmap().Prefix(a.Unmap().BitLen())
		}
		if err != nil {
			return nil, fmt.Errorf("%q; expected an address or a network, such as 10.0.0.0/8", yamldoc.Clip(text))
		}
		list[i] = network
	}
	return list, nil
}

// Loopback reports whether Listen can be reached only from this machine.
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

// FirstURL returns the first of the broker's URLs, or "" if there is none.
func (c *Config) FirstURL() URL { return c.Broker.first() }

// DelayGiven reports whether a file was read, or a flag or an environment variable sets the strategy or its layout. If
// not, both are the defaults.
func (c *Config) DelayGiven() bool {
	for path := range c.origins {
		if strings.HasPrefix(path, "delay.") {
			return true
		}
	}
	return c.file != ""
}

// Destination returns the file's destination for a queue. If the file has none, it returns a destination with the
// queue and defaults.
func (c *Config) Destination(queue string) topology.Destination {
	for _, d := range c.Topology.Destinations {
		if d.Queue == queue {
			return d
		}
	}
	return topology.Destination{Queue: queue}
}

// File returns the path of the file from which the configuration was read, or "" if there was none.
func (c *Config) File() string { return c.file }

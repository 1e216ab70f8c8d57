package config

import (
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/internal/serveconf"
	"github.com/rabbitdelay/rabbitdelay/internal/yamldoc"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Config contains all settings of a process. Load reads them. In YAML, a setting's path consists of the field names
// in lower case, with underscores between words.
type Config struct {
	Broker   Broker
	Delay    Delay
	Database Database
	// Topology contains the exchanges, queues, bindings and destinations described in the file, without the objects
	// that the strategy needs.
	Topology topology.Topology
	// Schedules are the recurring tasks in the file. Pass them to schedule.RecurringTasks.Apply.
	Schedules []schedule.Recurring

	serve   serveconf.Settings // only rabbitdelay serve uses these settings
	file    string
	origins yamldoc.Places // places of the values that were set, by path
}

func init() { //nolint:gochecknoinits // the program asks for a section that the public Config does not show
	serveconf.SetOf(func(config any) *serveconf.Settings {
		c, _ := config.(*Config)
		return &c.serve
	})
}

// Broker contains the settings for the connection to the broker.
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
	// settings. In Go, 0 means the default, but an explicit 0 in a file is an error. Config.Client fills in the
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

	// Layout, Radices and Resolution are settings of the bucket strategy; see the type Layout.
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

// Native contains the settings of the native strategy; see dlx.NativeConfig. With the auto strategy and Auto, native is
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

// DelayGiven reports whether a file was read, or a flag or an environment variable sets any of the settings below
// delay. If not, the strategy and its layout are the defaults.
func (c *Config) DelayGiven() bool {
	for path := range c.origins {
		if strings.HasPrefix(path, "delay.") {
			return true
		}
	}
	return c.file != ""
}

// File returns the path of the file from which the configuration was read, or "" if there was none.
func (c *Config) File() string { return c.file }

package doctor

import (
	"encoding/json"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/plan"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Snapshot is the observed state of a broker. A field that could not be read has its zero value, with an entry in
// Unchecked or Notes.
type Snapshot struct {
	Product string // the product that the broker reports, e.g. "RabbitMQ"
	Version string // the version that the broker reports, e.g. "4.3.6"
	Live    plan.State

	ExchangeTypes []string // the types that the broker supports; nil if unknown
	// Instants reports whether quorum queues delay messages until the time in the header topology.HeaderInstant. It is
	// nil if this was not tested.
	Instants *bool
	Flags    map[string]bool // the feature flags, true if enabled; nil if unknown
	// Nodes are the nodes of the cluster, or nil if they are unknown. If the list of nodes cannot be read, Nodes
	// contains the nodes that queues name, and NodesComplete is false.
	Nodes              []Node
	NodesComplete      bool
	Alarms             []Alarm      // alarms in effect; nil if unknown
	Blocked            string       // why the broker blocked one of the doctor's own connections
	BlockedConnections []string     // names of the connections that the broker has blocked
	Clients            []Connection // connections of rabbitdelay's clients and relays; nil if unknown

	Denied        []Access       // the needed permissions that the connected user lacks
	Clocks        []Clock        // the nodes' clocks by name, if they were measured
	Standing      []StalledQueue // delay queues that keep messages for too long
	ParkedSamples []Parked       // a sample of the parked messages
	// Tasks describes the tasks in the business database. It is nil if there is no database or it could not
	// be read.
	Tasks *Tasks

	Unchecked []Unchecked // what could not be read
	Notes     []string
}

// Area is an area that the doctor checks. Use it in Config.Skip.
type Area string

// These are the areas of a snapshot.
const (
	AreaManagement   Area = "management"    // everything that only the management API shows
	AreaObjects      Area = "objects"       // objects that the user is not allowed to see
	AreaMessages     Area = "messages"      // messages in queues that do not answer
	AreaPermissions  Area = "permissions"   // permissions of the user
	AreaArguments    Area = "arguments"     // arguments of queues and exchanges
	AreaBindings     Area = "bindings"      // existence of bindings
	AreaPolicies     Area = "policies"      // policies and their effects
	AreaNodes        Area = "nodes"         // nodes of the cluster, and the replicas on them
	AreaAlarms       Area = "alarms"        // memory and disk alarms
	AreaPlugin       Area = "plugin"        // whether the broker has the plugin
	AreaInstants     Area = "instants"      // whether the broker delays messages until a given time
	AreaFeatureFlags Area = "feature-flags" // feature flags of RabbitMQ 3.10
	AreaVersion      Area = "version"       // version of the broker
	AreaClock        Area = "clock"         // whether each node's clock agrees with this machine's and the other nodes' clocks
	AreaStandstill   Area = "standstill"    // whether delay queues keep messages
	AreaDatabase     Area = "database"      // tasks in the database
)

// Areas lists all areas.
var Areas = []Area{
	AreaManagement, AreaObjects, AreaMessages, AreaPermissions, AreaArguments, AreaBindings, AreaPolicies, AreaNodes, AreaAlarms, AreaPlugin, AreaInstants,
	AreaFeatureFlags, AreaVersion, AreaClock, AreaStandstill, AreaDatabase,
}

// Unchecked is an area that could not be checked, with the reason.
type Unchecked struct {
	Area Area   `json:"area"`
	Why  string `json:"why"`
}

// Tasks is what was read about the tasks in a business database: overdue tasks, tasks that should have a message on the
// broker, tasks for unlisted destinations, and recurring tasks that create no tasks.
type Tasks struct {
	// Unsent counts overdue tasks that were never sent to the broker. Unhandled counts overdue tasks that were sent but
	// are still pending. More means that there are further tasks of either kind.
	Unsent, Unhandled int64
	More              bool
	// OldestUnsent and OldestUnhandled are the times at which the oldest of these tasks became due.
	OldestUnsent, OldestUnhandled time.Time
	LastError                     string // the error recorded on an unsent task; empty if there is none
	// Idle lists, by name, the recurring tasks that currently create no tasks although they are not paused.
	Idle []IdleRecurring
	// Unlisted lists, by name, the destinations of pending tasks that are missing in the configuration, although it
	// must list them (declare: listed).
	Unlisted []UnlistedTasks
	Unread   string // why Idle and Unlisted are unknown; empty if they are known
	Relays   string // who would send the tasks, as a sentence: status.WhoSends
	ReadOnly string // the error from the database if it is read-only; empty if that is not known
	// Ahead counts tasks that were sent and are not due yet, so each of them should still have a message on the broker. It
	// stops at a limit, and then AheadMore is set. ResendFrom and ResendTo are the range of the times at which the relay
	// sends these tasks again if their messages are lost.
	Ahead                int64
	AheadMore            bool
	ResendFrom, ResendTo time.Time
	// Recounted is the number of messages that a second count found on the broker, because the first count was too low for
	// Ahead.
	Recounted int64
	Now       time.Time // the database's time of this reading
	// Skew is the database's clock minus this process's clock. It is 0 if the difference is at most a second.
	Skew time.Duration
}

// IdleRecurring is a recurring task that creates no tasks, with the reason.
type IdleRecurring struct {
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

// UnlistedTasks counts the pending tasks of a destination that clients with this configuration refuse to send to.
type UnlistedTasks struct {
	Destination string `json:"destination"`
	Pending     int64  `json:"pending"` // counted up to 10,000
}

// Node is a node of a cluster.
type Node struct {
	Name        string
	Running     bool
	Partitions  []string // nodes that it has lost contact with
	ConfigFiles []string // paths of the files from which it has read its settings
	FilesKnown  bool
	Uptime      time.Duration // how long ago it started; 0 if unknown
}

// withoutAdvanced reports whether the node runs and is known to have no advanced.config.
func (n Node) withoutAdvanced() bool {
	// The usual name is advanced.config. A file with another name, which is set with RABBITMQ_ADVANCED_CONFIG_FILE, is
	// recognised only if the name begins with "advanced".
	advanced := func(file string) bool { return strings.HasPrefix(path.Base(file), "advanced") }
	return n.Running && n.FilesKnown && !slices.ContainsFunc(n.ConfigFiles, advanced)
}

// These are RabbitMQ's names for the resources of its alarms.
const (
	AlarmMemory = "memory"
	AlarmDisk   = "disk space"
)

// Alarm is a resource that a node is short of.
type Alarm struct {
	Node     string
	Resource string // AlarmMemory, AlarmDisk, or another of RabbitMQ's names
}

// Connection is a connection to the broker.
type Connection struct {
	Name    string // the name given by its client
	Blocked bool   // whether the broker blocks it from publishing
}

// Parked is a parked message.
type Parked struct {
	RoutingKey  string
	Destination string // the header rabbitdelay-destination; empty if it is missing
}

// Access is one permission on one object.
type Access struct {
	Operation string // configure, write or read
	Kind      topology.Kind
	Name      string // "amq.default" for the default exchange, as in permissions
	Role      Role   // the first role that needs it, in the order producer, consumer, bootstrapper
}

// Clock is the difference between a node's clock and this process's clock. It is positive when the node's clock is
// ahead and negative when it is behind. The true difference is between Low and High.
type Clock struct {
	Node      string // the node's name or address; empty if only the broker is known
	Low, High time.Duration
	Method    string // how it was measured
}

// Difference returns the midpoint between Low and High.
func (c Clock) Difference() time.Duration { return c.Low + (c.High-c.Low)/2 }

// Resolution returns the maximum error of Difference.
func (c Clock) Resolution() time.Duration { return (c.High - c.Low) / 2 }

// MarshalJSON returns {"node":…,"difference_ms":…,"resolution_ms":…,"method":…}.
func (c Clock) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Node       string  `json:"node"`
		Difference float64 `json:"difference_ms"`
		Resolution float64 `json:"resolution_ms"`
		Method     string  `json:"method"`
	}{c.Node, millis(c.Difference()), millis(c.Resolution()), c.Method})
}

func millis(d time.Duration) float64 {
	return float64(d.Round(10*time.Microsecond)) / float64(time.Millisecond)
}

// notRabbitMQ reports whether the broker reports a product other than RabbitMQ.
func (s *Snapshot) notRabbitMQ() bool { return s.Product != "" && s.Product != "RabbitMQ" }

// version returns RabbitMQ's version. It is unknown for another product, because the checks cannot interpret its
// versions.
func (s *Snapshot) version() plan.Version {
	if s.notRabbitMQ() {
		return plan.Version{}
	}
	return plan.ParseVersion(s.Version)
}

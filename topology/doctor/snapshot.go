package doctor

import (
	"encoding/json"
	"time"

	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/observed"
)

// Snapshot is what was seen of a broker. What could not be seen is left at its zero value, with a note.
type Snapshot struct {
	Version string // that the broker reports, e.g. "4.3.6"
	Live    observed.Broker

	ExchangeTypes []string // those that the broker knows; nil: unknown
	// Instants reports whether quorum queues delay by topology.HeaderInstant; nil: nobody asked.
	Instants *bool
	Flags    map[string]bool // the feature flags, true for enabled ones; nil: unknown
	// Nodes of the cluster; nil: unknown. Where only some could be seen, because
	// queues name them, they are all here and NodesComplete is false.
	Nodes              []Node
	NodesComplete      bool
	Alarms             []Alarm      // in effect
	Blocked            string       // why the broker blocked a connection of the doctor's own
	BlockedConnections []string     // the names of connections that the broker has blocked
	Clients            []Connection // the connections of rabbitdelay's clients and relays; nil: unknown

	Denied        []Access   // the permissions that the connected user lacks, of those that it needs
	Clocks        []Clock    // those of the nodes, by name, as far as they were measured
	Standing      []Standing // the delay queues that were found to keep messages
	ParkedSamples []Parked   // parked messages that were looked at
	// Tasks are those of the business database; nil: there is none, or it could not be looked at.
	Tasks *Tasks

	Unseen []Unseen // what could not be looked at
	Notes  []string
}

// Area is something that a doctor looks at, for Config.Skip.
type Area string

// The areas.
const (
	AreaManagement   Area = "management"    // everything that only the management API tells
	AreaObjects      Area = "objects"       // objects that the user may not look at
	AreaMessages     Area = "messages"      // of queues that do not answer
	AreaPermissions  Area = "permissions"   // of the user
	AreaArguments    Area = "arguments"     // of queues and exchanges
	AreaBindings     Area = "bindings"      // whether they are there
	AreaPolicies     Area = "policies"      // and what they do
	AreaNodes        Area = "nodes"         // of the cluster, and replicas on them
	AreaAlarms       Area = "alarms"        // memory and disk
	AreaPlugin       Area = "plugin"        // whether the broker has it
	AreaInstants     Area = "instants"      // whether the broker delays by them
	AreaFeatureFlags Area = "feature-flags" // of RabbitMQ 3.10
	AreaVersion      Area = "version"       // of the broker
	AreaClock        Area = "clock"         // of each node, whether it agrees with this machine's and the others
	AreaStandstill   Area = "standstill"    // whether delay queues keep messages
	AreaDatabase     Area = "database"      // tasks that are overdue
)

// Areas are all of them.
var Areas = []Area{
	AreaManagement, AreaObjects, AreaMessages, AreaPermissions, AreaArguments, AreaBindings, AreaPolicies, AreaNodes, AreaAlarms, AreaPlugin, AreaInstants,
	AreaFeatureFlags, AreaVersion, AreaClock, AreaStandstill, AreaDatabase,
}

// Unseen is something that could not be looked at.
type Unseen struct {
	Area Area   `json:"area"`
	Why  string `json:"why"`
}

// Tasks sums up the pending tasks of a business database that are overdue.
type Tasks struct {
	// Unsent tasks were never given to the broker, Unhandled ones were and are
	// pending still. More tells that there are further ones of either kind.
	Unsent, Unhandled int64
	More              bool
	// OldestUnsent and OldestUnhandled are since when the first of them is due.
	OldestUnsent, OldestUnhandled time.Time
	LastError                     string // one that was noted on an unsent task, empty for none
	// Idle are recurring tasks that make no tasks at present although nobody has paused them, by name.
	Idle []IdleRecurring
	// Unlisted are the destinations of pending tasks that the configuration does not
	// list, by name, where it has to (declare: listed).
	Unlisted []UnlistedTasks
	Unread   string    // why Idle and Unlisted are not known; empty if they are
	Relays   string    // who would send them, as a sentence: schedule.WhoSends
	Now      time.Time // when that was
}

// IdleRecurring is a recurring task that makes no tasks, and the reason.
type IdleRecurring struct {
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

// UnlistedTasks are pending tasks of a destination that clients of the configuration refuse to send to.
type UnlistedTasks struct {
	Destination string `json:"destination"`
	Pending     int64  `json:"pending"` // at most 10,000 are counted
}

// Node is a node of a cluster.
type Node struct {
	Name        string
	Running     bool
	Partitions  []string // nodes that it has lost touch with
	ConfigFiles []string // the paths of the files that it has read its settings from
	FilesKnown  bool
}

// Alarm is a resource that a node is short of.
type Alarm struct {
	Node     string
	Resource string // memory or disk
}

// Connection is a connection to the broker.
type Connection struct {
	Name    string // that its client gave
	Blocked bool   // it may not publish now
}

// Parked is a parked message.
type Parked struct {
	RoutingKey  string
	Destination string // of the header rabbitdelay-destination; empty without it
}

// Access is one permission on one object.
type Access struct {
	Operation string // configure, write or read
	Kind      topology.Kind
	Name      string // "amq.default" for the default exchange, as in permissions
	Role      Role   // that needs it first, in the order producer, consumer, bootstrapper
}

// Clock is how much a node's clock is ahead of this process's. It is negative when it
// is behind. The true difference lies between Low and High.
type Clock struct {
	Node      string // or the address; empty for the broker, of which no more is known
	Low, High time.Duration
	Method    string // how it was measured
}

// Difference returns the middle of what is possible.
func (c Clock) Difference() time.Duration { return c.Low + (c.High-c.Low)/2 }

// Resolution returns how far the true difference may be from Difference.
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

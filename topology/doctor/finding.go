package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/naming"
	"github.com/rabbitdelay/rabbitdelay/topology/observed"
	"github.com/rabbitdelay/rabbitdelay/topology/plan"
)

const (
	// SeverityCritical findings lose messages, deliver them early or do not deliver them, as things are now.
	SeverityCritical Severity = "critical"
	// SeverityWarning findings will do so when something else happens: a node is lost, a handler
	// fails, a backlog grows.
	SeverityWarning Severity = "warning"
)

// Severity is how bad a finding is.
type Severity string

// Finding is one thing that is wrong.
type Finding struct {
	ID       string   `json:"id"` // of the kind of finding, e.g. "policy-message-ttl"
	Severity Severity `json:"severity"`
	What     string   `json:"what"`
	Why      string   `json:"why"`  // it matters
	Mend     string   `json:"mend"` // the command, or what to do
	// Objects are the names of the queues, exchanges or nodes, all of them.
	Objects []string `json:"objects,omitempty"`
}

// PluginUse is what the configuration needs the x-delayed-message plugin for.
type PluginUse int

// The uses there are.
const (
	PluginUnused   PluginUse = iota
	PluginOptional           // for a range of delays, where the broker has it
	PluginRequired           // for every delay
)

// Role is what the user of the connection is for.
type Role string

const (
	// RoleProducer publishes into the entry exchanges.
	RoleProducer Role = "producer"
	// RoleConsumer consumes from the destination queues, retries and dead-letters.
	RoleConsumer Role = "consumer"
	// RoleBootstrapper declares everything.
	RoleBootstrapper Role = "bootstrapper"
)

// Defaults of Config.
const (
	DefaultClockTolerance     = time.Second
	DefaultBacklog            = 10_000
	DefaultMinConsumerTimeout = time.Minute
	DefaultMaxRouteQueues     = 100
)

// Config is what the broker is compared with.
type Config struct {
	Want   topology.Topology // everything that should exist, destinations included
	Prefix string            // of the delay objects, default "delay"
	Plugin PluginUse         // the use of the x-delayed-message plugin
	// Skip lists areas that need not be checked; if they cannot be seen, the report is complete all the same.
	Skip []Area
	// Roles of the connected user; those without the permissions are findings. Nil: all; empty: none.
	Roles []Role
	// Vhost and File stand in the commands that mend; File may be empty.
	Vhost, File string

	// ClockTolerance is how much the clocks of the broker's nodes and of this process may differ, default 1 s.
	ClockTolerance time.Duration
	Backlog        int64 // how many messages may wait in a destination queue, default 10,000
	// MinConsumerTimeout is the shortest consumer timeout of a destination queue
	// that leaves handlers enough time, default 1 min.
	MinConsumerTimeout time.Duration
	MaxRouteQueues     int // how many route queues there may be, default 100
}

// WithDefaults fills in what is not set.
func (c Config) WithDefaults() Config {
	c.Prefix = cmp.Or(c.Prefix, topology.DefaultPrefix)
	c.Vhost = cmp.Or(c.Vhost, "/")
	c.ClockTolerance = cmp.Or(c.ClockTolerance, DefaultClockTolerance)
	c.Backlog = cmp.Or(c.Backlog, DefaultBacklog)
	c.MinConsumerTimeout = cmp.Or(c.MinConsumerTimeout, DefaultMinConsumerTimeout)
	c.MaxRouteQueues = cmp.Or(c.MaxRouteQueues, DefaultMaxRouteQueues)
	if c.Roles == nil {
		c.Roles = []Role{RoleProducer, RoleConsumer, RoleBootstrapper}
	}
	return c
}

// WantsInstants reports whether the configuration relies on the broker to delay by an instant.
func (c Config) WantsInstants() bool {
	return slices.ContainsFunc(c.Want.Queues, func(q topology.Queue) bool {
		l, ok := naming.LayoutOf(c.Prefix, q.Name)
		return ok && l.Native()
	})
}

// Report is what Diagnose found.
type Report struct {
	Broker   string    `json:"broker"` // version
	Source   string    `json:"source"` // how the broker was read
	Vhost    string    `json:"vhost"`
	Clocks   []Clock   `json:"clocks"` // of the nodes; empty: not measured
	Parked   int64     `json:"parked"`
	Findings []Finding `json:"findings"`
	// Unseen lists what could not be checked.
	Unseen []Unseen `json:"unseen"`
	// Notes are worth knowing, but are no problems.
	Notes []string `json:"notes"`
}

// Clean reports whether nothing was found. What was not looked at is in Unseen.
func (r Report) Clean() bool { return len(r.Findings) == 0 }

// Complete reports whether everything that was not skipped was checked.
func (r Report) Complete() bool { return len(r.Unseen) == 0 }

// Count returns the number of findings with the severity.
func (r Report) Count(s Severity) int {
	n := 0
	for _, f := range r.Findings {
		if f.Severity == s {
			n++
		}
	}
	return n
}

type examination struct {
	cfg     Config
	snap    Snapshot
	plan    plan.Plan
	version observed.Version
	want    map[string]topology.Queue // by name
	left    []leftover
	queues  []string // to which messages are delivered
	rep     Report
}

func (x *examination) unseenf(a Area, format string, args ...any) {
	why := fmt.Sprintf(format, args...)
	if slices.Contains(x.cfg.Skip, a) {
		x.notef("not looked at, as asked (%s): %s", a, why)
		return
	}
	x.rep.Unseen = append(x.rep.Unseen, Unseen{a, why})
}

func (x *examination) notef(format string, args ...any) {
	x.rep.Notes = append(x.rep.Notes, fmt.Sprintf(format, args...))
}

func (x *examination) found(f Finding) { x.rep.Findings = append(x.rep.Findings, f) }

// about reports a finding about objects; without any there is none.
func (x *examination) about(objects []string, f Finding) {
	if len(objects) > 0 {
		f.Objects = objects
		x.found(f)
	}
}

// grouped puts together what has the same key, in the order of the first of each.
func grouped[T any](all []T, key func(T) string) [][]T {
	var groups [][]T
	at := map[string]int{}
	for _, v := range all {
		i, known := at[key(v)]
		if !known {
			i = len(groups)
			at[key(v)], groups = i, append(groups, nil)
		}
		groups[i] = append(groups[i], v)
	}
	return groups
}

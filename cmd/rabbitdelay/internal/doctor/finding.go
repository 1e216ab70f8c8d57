package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/naming"
	"github.com/rabbitdelay/rabbitdelay/internal/plan"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

const (
	// SeverityCritical marks findings that already lose messages, deliver them early or do not deliver them.
	SeverityCritical Severity = "critical"
	// SeverityWarning marks findings that will have these effects if something else happens: a node is lost, a handler
	// fails, or a backlog grows.
	SeverityWarning Severity = "warning"
)

// Severity is the severity of a finding.
type Severity string

// Finding is one problem.
type Finding struct {
	ID       string   `json:"id"` // the kind of finding, e.g. "policy-message-ttl"
	Severity Severity `json:"severity"`
	What     string   `json:"what"`
	Why      string   `json:"why"` // why it matters
	Fix      string   `json:"fix"` // a command, or what to do
	// Objects lists the names of all affected queues, exchanges or nodes.
	Objects []string `json:"objects,omitempty"`
}

// PluginUse is the configuration's use of the x-delayed-message plugin.
type PluginUse int

// These are the values of PluginUse.
const (
	PluginUnused   PluginUse = iota
	PluginOptional           // for a range of delays, if the broker has the plugin
	PluginRequired           // for every delay
)

// Role is a purpose for which the connected user needs permissions.
type Role string

const (
	// RoleProducer publishes to the entry exchanges.
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

// Config describes what the broker should have, and the limits for findings.
type Config struct {
	Want   topology.Topology // everything that should exist, including destinations
	Prefix string            // prefix of the delay objects; default "delay"
	Plugin PluginUse         // the use of the x-delayed-message plugin
	// Skip lists areas that need not be checked. The report counts as complete even if they cannot be checked.
	Skip []Area
	// Roles are the roles of the connected user. A missing permission of a role is a finding. Nil means all roles,
	// and an empty slice means none.
	Roles []Role
	// Vhost and File are used in the commands that fix a finding. File may be empty.
	Vhost, File string

	// ClockTolerance is the largest accepted difference between the clocks of the broker's nodes and this process.
	// Default 1 s.
	ClockTolerance time.Duration
	Backlog        int64 // number of messages that may wait in a destination queue; default 10,000
	// MinConsumerTimeout is the shortest consumer timeout of a destination queue that leaves handlers enough time.
	// Default 1 min.
	MinConsumerTimeout time.Duration
	MaxRouteQueues     int // number of route queues that may exist; default 100
}

// WithDefaults returns the configuration with defaults for all unset fields.
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

// WantsInstants reports whether the configuration relies on the broker to delay messages until a given time.
func (c Config) WantsInstants() bool {
	return slices.ContainsFunc(c.Want.Queues, func(q topology.Queue) bool {
		l, ok := naming.LayoutOf(c.Prefix, q.Name)
		return ok && l.Native()
	})
}

// Report is the result of Diagnose.
type Report struct {
	Broker   string    `json:"broker"` // the broker's version
	Source   string    `json:"source"` // how the broker was read
	Vhost    string    `json:"vhost"`
	Clocks   []Clock   `json:"clocks"` // clocks of the nodes; nil if they were not measured
	Parked   *int64    `json:"parked"` // a lower bound of the number of parked messages; nil if unknown
	Findings []Finding `json:"findings"`
	// Unchecked lists the checks that were not possible.
	Unchecked []Unchecked `json:"unchecked"`
	// Notes contain useful information that is not a problem.
	Notes []string `json:"notes"`
}

// Clean reports whether there are no findings. It ignores checks that were not possible, which are in Unchecked.
func (r Report) Clean() bool { return len(r.Findings) == 0 }

// Complete reports whether all checks were possible, except those that were skipped.
func (r Report) Complete() bool { return len(r.Unchecked) == 0 }

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
	version plan.Version
	want    map[string]topology.Queue // by name
	left    []leftover
	queues  []string // queues to which messages are delivered
	rep     Report
}

func (x *examination) uncheckedf(a Area, format string, args ...any) {
	why := fmt.Sprintf(format, args...)
	if slices.Contains(x.cfg.Skip, a) {
		x.notef("skipped, as requested (%s): %s", a, why)
		return
	}
	x.rep.Unchecked = append(x.rep.Unchecked, Unchecked{a, why})
}

func (x *examination) notef(format string, args ...any) {
	x.rep.Notes = append(x.rep.Notes, fmt.Sprintf(format, args...))
}

func (x *examination) found(f Finding) { x.rep.Findings = append(x.rep.Findings, f) }

// about adds a finding about objects, unless there are no objects.
func (x *examination) about(objects []string, f Finding) {
	if len(objects) > 0 {
		f.Objects = objects
		x.found(f)
	}
}

// grouped groups the values with the same key, and orders the groups by their first values.
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

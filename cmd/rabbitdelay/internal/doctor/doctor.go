package doctor

import (
	"slices"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/internal/plan"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Diagnose checks a snapshot against the configuration and returns the report, with critical findings first. It does
// no I/O.
func Diagnose(cfg Config, snap Snapshot) Report {
	cfg = cfg.WithDefaults()
	x := &examination{
		cfg: cfg, snap: snap, version: snap.version(), want: map[string]topology.Queue{},
		rep: Report{
			Broker: snap.Version, Source: snap.Live.Source, Vhost: cfg.Vhost, Clocks: slices.Clone(snap.Clocks),
			Findings: []Finding{}, Unchecked: []Unchecked{}, Notes: slices.Clone(snap.Notes),
		},
	}
	for _, u := range snap.Unchecked {
		x.uncheckedf(u.Area, "%s", u.Why)
	}
	for _, q := range cfg.Want.Queues {
		x.want[q.Name] = q
	}
	x.left, x.queues = x.leftovers(), x.destinationQueues()
	// Policies are also checked for delay queues of older layouts that have not drained yet.
	checked := cfg.Want
	for _, l := range x.left {
		checked.Queues = append(slices.Clip(checked.Queues), l.queue)
	}
	x.plan = plan.Compare(cfg.Want, snap.Live)
	x.plan.Warnings = plan.Compare(checked, snap.Live).Warnings

	for _, check := range []func(){
		x.checkAvailable, x.checkVersion, x.checkPlugin, x.checkInstants, x.checkNodes, x.checkAlarms, x.checkClock, x.checkPermissions,
		x.checkStandstill, x.checkMissing, x.checkConflicts, x.checkPolicies, x.checkStrays, x.checkPlaces, x.checkLeftovers, x.checkParked, x.checkForeign,
		x.checkDestinations, x.checkDeadLetters, x.checkRoutes, x.checkRouteCount, x.checkTasks, x.checkSettings,
	} {
		check()
	}
	slices.SortStableFunc(x.rep.Findings, func(a, b Finding) int {
		return strings.Compare(string(a.Severity), string(b.Severity)) // "critical" before "warning"
	})
	if x.rep.Notes == nil {
		x.rep.Notes = []string{}
	}
	return x.rep
}

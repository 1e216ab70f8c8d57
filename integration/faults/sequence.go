package faults

import (
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"time"
)

// Kind is a kind of fault.
type Kind string

// The kinds of faults. A fault that has a duration is healed afterwards.
const (
	// Faults of the network between clients and broker.
	Cut        Kind = "network-cut"         // connections are reset, and new ones refused for a while
	Stall      Kind = "network-stall"       // no data passes in either direction, but connections stay open
	HalfClose  Kind = "network-half-close"  // one direction is closed, but the other stays open
	Slow       Kind = "network-slow"        // every piece of data is delayed
	CutConfirm Kind = "network-cut-confirm" // cut between a publish and its confirm
	CutAck     Kind = "network-cut-ack"     // cut between a delivery and its ack

	// Faults of a single broker.
	Restart     Kind = "broker-restart"
	Kill        Kind = "broker-kill"         // kill -9
	Down        Kind = "broker-down"         // kill -9, and started again after every waiting message is due
	Freeze      Kind = "broker-freeze"       // the process is suspended
	MemoryAlarm Kind = "broker-memory-alarm" // publishers are blocked
	DiskAlarm   Kind = "broker-disk-alarm"   // publishers are blocked

	// Faults of a cluster.
	KillLeader     Kind = "cluster-kill-leader"     // kill -9 of the node that leads a bucket queue
	RollingRestart Kind = "cluster-rolling-restart" // every node in turn
	Partition      Kind = "cluster-partition"       // one node is isolated from the other nodes, but not from clients
	FreezeNode     Kind = "cluster-freeze-node"
	NodeAlarm      Kind = "cluster-memory-alarm" // an alarm of one node, which blocks publishers on all nodes

	// Faults of a consumer process.
	KillBeforeCommit Kind = "consumer-kill-before-commit" // kill -9 after the effect's statement
	KillBeforeAck    Kind = "consumer-kill-before-ack"    // kill -9 after the commit
	Panic            Kind = "consumer-panic"
	Overrun          Kind = "consumer-overrun" // it stops while a handler runs for longer than the drain time
	Pauses           Kind = "consumer-pauses"  // it returns its messages more times than RabbitMQ 4 allows

	// Faults of the business database.
	DatabaseRestart Kind = "database-restart"
	DatabaseKill    Kind = "database-kill"         // kill -9
	LoseCommit      Kind = "database-lose-commit"  // the connection is cut instead of forwarding a commit
	LoseAnswer      Kind = "database-lose-answer"  // the connection is cut instead of forwarding a commit's answer
	LockTable       Kind = "database-lock-timeout" // a table lock lasts longer than the lock timeout
	Conflict        Kind = "database-conflict"     // a competing client causes serialization failures
)

// spec says how many times per round, and for how long, a kind of fault occurs in a sequence.
type spec struct {
	kind   Kind
	group  string        // faults of the same group never occur at the same time
	weight int           // number of occurrences per round
	lo, hi time.Duration // minimum and maximum duration
}

// MaxDelay is the longest delay of the workload.
const MaxDelay = 8 * time.Second

var specs = []spec{
	{Cut, "network", 2, 0, 3 * time.Second},
	{Stall, "network", 2, time.Second, 8 * time.Second},
	{HalfClose, "network", 2, time.Second, 4 * time.Second},
	{Slow, "network", 1, 2 * time.Second, 6 * time.Second},
	{CutConfirm, "network", 2, 500 * time.Millisecond, 2 * time.Second},
	{CutAck, "network", 2, 500 * time.Millisecond, 2 * time.Second},

	{Restart, "broker", 2, 0, time.Second},
	{Kill, "broker", 2, 0, time.Second},
	{Down, "broker", 1, MaxDelay + time.Second, MaxDelay + 4*time.Second},
	{Freeze, "broker", 1, time.Second, 9 * time.Second},
	{MemoryAlarm, "broker", 1, 2 * time.Second, 7 * time.Second},
	{DiskAlarm, "broker", 1, 2 * time.Second, 7 * time.Second},

	{KillLeader, "cluster", 3, 0, 10 * time.Second},
	{RollingRestart, "cluster", 1, 0, 2 * time.Second},
	{Partition, "cluster", 2, 5 * time.Second, 30 * time.Second},
	{FreezeNode, "cluster", 1, 2 * time.Second, 15 * time.Second},
	{NodeAlarm, "cluster", 1, 2 * time.Second, 7 * time.Second},

	{KillBeforeCommit, "consumer", 2, 0, 0},
	{KillBeforeAck, "consumer", 2, 0, 0},
	{Panic, "consumer", 1, 0, 0},
	{Overrun, "consumer", 1, 0, 0},
	{Pauses, "consumer", 2, 2 * time.Second, 5 * time.Second},

	{DatabaseRestart, "database", 1, 0, 2 * time.Second},
	{DatabaseKill, "database", 1, 0, 3 * time.Second},
	{LoseCommit, "database", 2, 500 * time.Millisecond, 2 * time.Second},
	{LoseAnswer, "database", 2, 500 * time.Millisecond, 2 * time.Second},
	{LockTable, "database", 1, 2 * time.Second, 5 * time.Second},
	{Conflict, "database", 1, 2 * time.Second, 5 * time.Second},
}

// Fault is a fault to inject.
type Fault struct {
	Kind Kind
	Hold time.Duration // duration before it is healed
	Aim  int           // index of the affected component, taken modulo their number
}

// String describes the fault in one line.
func (f Fault) String() string {
	return fmt.Sprintf("%s for %v (aim %d)", f.Kind, f.Hold.Round(time.Millisecond), f.Aim)
}

// Step is one fault, or two simultaneous faults of different groups, followed by a rest.
type Step struct {
	Faults []Fault
	Rest   time.Duration
}

// Kinds returns the kinds of the given groups: network, broker, cluster, consumer, database.
func Kinds(groups ...string) []Kind {
	var kinds []Kind
	for _, s := range specs {
		if slices.Contains(groups, s.group) {
			kinds = append(kinds, s.kind)
		}
	}
	return kinds
}

// Sequence returns an endless sequence of faults of the given kinds. The same seed and kinds give the same sequence.
// Every kind occurs in each round as the first fault of a step, and about a third of the steps have a second fault.
func Sequence(seed uint64, kinds []Kind) iter.Seq[Step] {
	var deck []spec
	for _, s := range specs {
		if slices.Contains(kinds, s.kind) {
			for range s.weight {
				deck = append(deck, s)
			}
		}
	}
	return func(yield func(Step) bool) {
		if len(deck) == 0 {
			return
		}
		r := rand.New(rand.NewPCG(seed, 0x6661756c7473)) // a sequence for tests needs no secrecy
		for {
			for _, i := range r.Perm(len(deck)) {
				first := deck[i]
				step := Step{Faults: []Fault{first.draw(r)}}
				if second := deck[r.IntN(len(deck))]; r.IntN(2) == 0 && second.group != first.group {
					step.Faults = append(step.Faults, second.draw(r))
				}
				step.Rest = between(r, 2*time.Second, 6*time.Second)
				if !yield(step) {
					return
				}
			}
		}
	}
}

func (s spec) draw(r *rand.Rand) Fault {
	return Fault{Kind: s.kind, Hold: between(r, s.lo, s.hi), Aim: r.IntN(1 << 16)}
}

func between(r *rand.Rand, lo, hi time.Duration) time.Duration {
	if hi <= lo {
		return lo
	}
	return lo + time.Duration(r.Int64N(int64(hi-lo)))
}

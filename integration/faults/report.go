package faults

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Report is the result of a run.
type Report struct {
	Name      string
	Strategy  string
	QueueType topology.QueueType
	Broker    string // the broker's version
	Database  string
	Seed      uint64
	Duration  time.Duration // how long messages were sent
	Verdict   Verdict
	Injected  []Injected
	Settled   time.Duration // time from the end of sending until the last effects
	Waiting   int           // messages that are still in delay queues or in the destination
	Parked    int           // messages in the parked queue
	Dead      int           // messages in the dead-letter queue
	Cuts      int           // connections cut by any fault: at a frame, at a commit, or all together
	Processes int           // consumer processes, including killed ones
}

func (r *run) report() *Report {
	rep := &Report{
		Name: r.cfg.Name, Strategy: r.cfg.Strategy.Name, QueueType: r.cfg.Strategy.QueueType,
		Broker: r.cfg.Brokers.Version(), Database: string(r.cfg.Database),
		Seed: r.cfg.Seed, Duration: r.cfg.Duration,
		Verdict:  Check(r.ledger.Sent(), r.ledger.Effects, r.ledger.Seen),
		Injected: r.injected,
		Cuts:     r.rig.network.cuts(), Processes: r.rig.consumers.starts(),
	}
	if r.rig.business.wire != nil {
		rep.Cuts += r.rig.business.wire.count()
	}
	if r.cfg.Second != nil {
		rep.Strategy += " and " + r.cfg.Second.Name + " " + r.cfg.Second.Layout
	}
	recoveries(rep.Injected, r.ledger.Sent(), r.ledger.Effects)
	return rep
}

// onTime is the maximum lateness of an effect that shows that an outage is over.
const onTime = time.Second

// recoveries records the recovery time of each fault: the time from its end until a message that was sent since then
// has been confirmed, and an effect has been on time.
func recoveries(injected []Injected, sent []Sent, effects []Effect) {
	type span struct{ began, ended time.Time }
	var acknowledged []span
	due := make(map[string]time.Time, len(sent))
	for _, s := range sent {
		due[s.ID] = s.Due
		if s.Outcome == Acknowledged {
			acknowledged = append(acknowledged, span{s.Began, s.Ended})
		}
	}
	slices.SortFunc(acknowledged, func(a, b span) int { return a.began.Compare(b.began) })
	var timely []time.Time
	for _, e := range effects {
		if d, ok := due[e.ID]; ok && e.At.Sub(d) < onTime {
			timely = append(timely, e.At)
		}
	}
	slices.SortFunc(timely, time.Time.Compare)
	for i := range injected {
		f := &injected[i]
		f.Recovery = -1
		effect, _ := slices.BinarySearchFunc(timely, f.Over, time.Time.Compare)
		first, _ := slices.BinarySearchFunc(acknowledged, f.Over, func(s span, t time.Time) int { return s.began.Compare(t) })
		if effect == len(timely) || first == len(acknowledged) {
			continue
		}
		confirmed := acknowledged[first].ended
		for _, s := range acknowledged[first:] {
			if s.began.After(confirmed) {
				break
			}
			if s.ended.Before(confirmed) {
				confirmed = s.ended
			}
		}
		f.Recovery = max(timely[effect].Sub(f.Over), confirmed.Sub(f.Over))
	}
}

// FailedFaults returns how many faults could not be injected or healed.
func (r *Report) FailedFaults() int {
	n := 0
	for _, f := range r.Injected {
		if f.Err != nil {
			n++
		}
	}
	return n
}

// kindStats is the statistics of one kind of fault.
type kindStats struct {
	Kind        Kind  `json:"kind"`
	Count       int   `json:"count"`
	Mixed       int   `json:"mixed"`
	Failed      int   `json:"failed"`
	RecoveryP50 int64 `json:"recovery_p50_ms"`
	RecoveryMax int64 `json:"recovery_max_ms"`
}

func (r *Report) kinds() []kindStats {
	byKind := map[Kind][]Injected{}
	for _, f := range r.Injected {
		byKind[f.Kind] = append(byKind[f.Kind], f)
	}
	var list []kindStats
	for _, k := range slices.Sorted(maps.Keys(byKind)) {
		s := kindStats{Kind: k, Count: len(byKind[k])}
		var took []int64
		for _, f := range byKind[k] {
			if f.Mixed {
				s.Mixed++
			}
			if f.Err != nil {
				s.Failed++
			}
			if f.Recovery >= 0 {
				took = append(took, f.Recovery.Milliseconds())
			}
		}
		if len(took) > 0 {
			slices.Sort(took)
			s.RecoveryP50, s.RecoveryMax = took[len(took)/2], took[len(took)-1]
		}
		list = append(list, s)
	}
	return list
}

// MarshalJSON encodes the report with durations in milliseconds.
func (r *Report) MarshalJSON() ([]byte, error) {
	v := r.Verdict
	return json.Marshal(map[string]any{
		"name": r.Name, "strategy": r.Strategy, "queue_type": r.QueueType, "broker": r.Broker, "database": r.Database,
		"seed": r.Seed, "seconds": r.Duration.Seconds(),
		"faults": len(r.Injected), "faults_failed": r.FailedFaults(), "faults_by_kind": r.kinds(),
		"messages": v.Messages, "acknowledged": v.Acknowledged, "not_sent": v.NotSent,
		"unknown": v.Unknown, "unknown_arrived": v.Arrived,
		"effects": v.Effects, "delivered": v.Delivered, "duplicates_delivered": v.Duplicates, "retries": v.Retries,
		"lost": v.Lost, "early": v.Early, "twice": v.Twice, "phantom": v.Phantom,
		"settled_seconds": r.Settled.Seconds(), "waiting": r.Waiting, "parked": r.Parked, "dead": r.Dead, "connections_cut": r.Cuts, "consumer_processes": r.Processes,
		"earliest_ms": millis(v.Earliest),
		"lateness_ms": map[string]float64{
			"p50": millis(v.Percentile(0.5)), "p99": millis(v.Percentile(0.99)), "max": millis(v.Percentile(1)),
		},
		"broken": v.Broken,
	})
}

func millis(d time.Duration) float64 {
	return float64(d.Round(10*time.Microsecond)) / float64(time.Millisecond)
}

// Print writes reports as text tables: the ledger, and the faults of each run by kind.
func Print(w io.Writer, reports []*Report) error {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', tabwriter.AlignRight)
	rows := []struct {
		name  string
		value func(*Report) string
	}{
		{"on", func(r *Report) string { return r.Name }},
		{"strategy", func(r *Report) string { return r.Strategy }},
		{"queues", func(r *Report) string { return cmp.Or(string(r.QueueType), "-") }},
		{"RabbitMQ", func(r *Report) string { return r.Broker }},
		{"database", func(r *Report) string { return r.Database }},
		{"seed", func(r *Report) string { return strconv.FormatUint(r.Seed, 10) }},
		{"sending for", func(r *Report) string { return r.Duration.String() }},
		{"faults", func(r *Report) string { return number(len(r.Injected)) }},
		{"that failed", func(r *Report) string { return number(r.FailedFaults()) }},
		{"connections cut", func(r *Report) string { return number(r.Cuts) }},
		{"consumer processes", func(r *Report) string { return number(r.Processes) }},
		{"messages", func(r *Report) string { return number(r.Verdict.Messages) }},
		{"acknowledged", func(r *Report) string { return number(r.Verdict.Acknowledged) }},
		{"not sent", func(r *Report) string { return number(r.Verdict.NotSent) }},
		{"outcome unknown", func(r *Report) string { return number(r.Verdict.Unknown) }},
		{"of these arrived", func(r *Report) string { return number(r.Verdict.Arrived) }},
		{"effects", func(r *Report) string { return number(r.Verdict.Effects) }},
		{"deliveries", func(r *Report) string { return number(r.Verdict.Delivered) }},
		{"duplicates", func(r *Report) string { return number(r.Verdict.Duplicates) }},
		{"retries", func(r *Report) string { return number(r.Verdict.Retries) }},
		{"settled after", func(r *Report) string { return r.Settled.Round(time.Second).String() }},
		{"still waiting", func(r *Report) string { return number(r.Waiting) }},
		{"parked", func(r *Report) string { return number(r.Parked) }},
		{"dead letters", func(r *Report) string { return number(r.Dead) }},
		{"LOST", func(r *Report) string { return number(r.Verdict.Lost) }},
		{"EARLY", func(r *Report) string { return number(r.Verdict.Early) }},
		{"TWICE", func(r *Report) string { return number(r.Verdict.Twice) }},
		{"PHANTOM", func(r *Report) string { return number(r.Verdict.Phantom) }},
		{"earliest ms", func(r *Report) string { return ms(r.Verdict.Earliest) }},
		{"late p50 ms", func(r *Report) string { return ms(r.Verdict.Percentile(0.5)) }},
		{"late p99 ms", func(r *Report) string { return ms(r.Verdict.Percentile(0.99)) }},
		{"late max ms", func(r *Report) string { return ms(r.Verdict.Percentile(1)) }},
	}
	for _, row := range rows {
		fmt.Fprint(t, row.name, "\t")
		for _, r := range reports {
			fmt.Fprint(t, row.value(r), "\t")
		}
		fmt.Fprintln(t)
	}
	for _, r := range reports {
		fmt.Fprintf(t, "\n%s: faults\tcount\tmixed\tfailed\trecovery p50 ms\tmax ms\t\n", r.Name)
		for _, k := range r.kinds() {
			fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%s\t%s\t\n", k.Kind, k.Count, k.Mixed, k.Failed,
				number(int(k.RecoveryP50)), number(int(k.RecoveryMax)))
		}
	}
	return t.Flush()
}

func ms(d time.Duration) string {
	return strconv.FormatFloat(millis(d), 'f', 1, 64)
}

// number formats a number with grouped digits.
func number(n int) string {
	s := strconv.Itoa(n)
	var b strings.Builder
	for i, c := range s {
		if i > 0 && (len(s)-i)%3 == 0 && s[i-1] != '-' {
			b.WriteByte(',')
		}
		b.WriteRune(c)
	}
	return b.String()
}

package faults

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/lateness"
)

// Violation is a kind of violated guarantee.
type Violation string

// The kinds of violations.
const (
	Lost    Violation = "lost"    // an acknowledged message without an effect
	Early   Violation = "early"   // an effect or a handler run before the due time
	Twice   Violation = "twice"   // more than one effect
	Phantom Violation = "phantom" // an effect of a message that is unknown, was not sent or was cancelled
)

// Broken is one violated guarantee.
type Broken struct {
	Violation Violation
	ID        string
	Detail    string
}

// Verdict is the result of Check.
type Verdict struct {
	Messages     int // calls to Send
	Acknowledged int
	NotSent      int
	Unknown      int
	Arrived      int // messages with the outcome Unknown that have an effect
	Effects      int

	Delivered  int // number of handler runs
	Duplicates int // runs of Delivered that repeat an attempt of a message
	Retries    int // runs of Delivered that are not the first attempt

	Lost, Early, Twice, Phantom int
	Broken                      []Broken // at most maxBroken of each kind

	// Earliest is the smallest time from a due time to its effect. Lateness lists these times in ascending order.
	Earliest time.Duration
	Lateness []time.Duration
}

// maxBroken is the maximum number of listed violations of each kind.
const maxBroken = 20

// Clean reports whether there are no violations.
func (v Verdict) Clean() bool { return v.Lost+v.Early+v.Twice+v.Phantom == 0 }

// String returns the number of violations of each kind, and one line for each listed violation.
func (v Verdict) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d lost, %d early, %d twice, %d phantom", v.Lost, v.Early, v.Twice, v.Phantom)
	for _, x := range v.Broken {
		fmt.Fprintf(&b, "\n%s %s: %s", x.Violation, x.ID, x.Detail)
	}
	return b.String()
}

// Percentile returns the lateness that a share p of the effects does not exceed. It returns 0 if there are no effects.
func (v Verdict) Percentile(p float64) time.Duration {
	if len(v.Lateness) == 0 {
		return 0
	}
	return lateness.Percentile(v.Lateness, p)
}

func (v *Verdict) brokef(kind Violation, count *int, id, format string, args ...any) {
	*count++
	if *count <= maxBroken {
		v.Broken = append(v.Broken, Broken{kind, id, fmt.Sprintf(format, args...)})
	}
}

// Check compares the results that producers received with the effects that consumers committed. An acknowledged message
// must have exactly one effect, at or after its due time. A message with an unknown outcome may have at most one. A
// message that was not sent or is unknown must have none. No handler may run before the due time of its delivery.
func Check(sent []Sent, effects []Effect, seen []Seen) Verdict {
	v := Verdict{Messages: len(sent), Effects: len(effects), Delivered: len(seen)}
	byID := make(map[string][]time.Time, len(effects))
	for _, e := range effects {
		byID[e.ID] = append(byID[e.ID], e.At)
	}
	known := make(map[string]Sent, len(sent))
	for _, s := range sent {
		if _, again := known[s.ID]; again {
			// The checks below could not distinguish two calls with the same ID.
			v.brokef(Phantom, &v.Phantom, s.ID, "the workload used the id twice, want unique ids")
		}
		known[s.ID] = s
		v.count(s, byID[s.ID])
	}
	// Iterate in the order of the effects, so that the same ledger gives the same text.
	for _, e := range effects {
		if _, ok := known[e.ID]; !ok {
			v.brokef(Phantom, &v.Phantom, e.ID, "an effect at %s of a message that was never sent", clock(e.At))
		}
	}
	v.deliveries(known, seen)
	slices.Sort(v.Lateness)
	if len(v.Lateness) > 0 {
		v.Earliest = v.Lateness[0]
	}
	return v
}

func (v *Verdict) count(s Sent, at []time.Time) {
	switch s.Outcome {
	case Acknowledged:
		v.Acknowledged++
		if len(at) == 0 {
			v.brokef(Lost, &v.Lost, s.ID, "acknowledged at %s, due at %s, no effect", clock(s.Ended), clock(s.Due))
		}
	case Unknown:
		v.Unknown++
		if len(at) > 0 {
			v.Arrived++
		}
	case NotSent:
		v.NotSent++
		if len(at) > 0 {
			v.brokef(Phantom, &v.Phantom, s.ID, "reported as not sent at %s, but it has an effect at %s", clock(s.Ended), clock(at[0]))
		}
	}
	if len(at) > 1 {
		v.brokef(Twice, &v.Twice, s.ID, "%d effects, at %s and %s", len(at), clock(at[0]), clock(at[1]))
	}
	for _, t := range at {
		late := t.Sub(s.Due)
		v.Lateness = append(v.Lateness, late)
		if late < 0 {
			v.brokef(Early, &v.Early, s.ID, "its effect was %v before the due time %s", -late, clock(s.Due))
		}
	}
}

func (v *Verdict) deliveries(known map[string]Sent, seen []Seen) {
	type delivery struct {
		id      string
		attempt int
	}
	before := make(map[delivery]bool, len(seen))
	for _, d := range seen {
		k := delivery{d.ID, d.Attempt}
		switch {
		case before[k]:
			v.Duplicates++
		case d.Attempt > 1:
			v.Retries++
		}
		before[k] = true
		due := d.Due
		if s, ok := known[d.ID]; ok && s.Due.After(due) {
			due = s.Due
		}
		if d.At.Before(due) {
			v.brokef(Early, &v.Early, d.ID, "its handler ran %v before the due time %s (attempt %d)", due.Sub(d.At), clock(due), d.Attempt)
		}
	}
}

func clock(t time.Time) string { return t.UTC().Format("15:04:05.000") }

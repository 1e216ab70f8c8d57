package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/foreign"
	"github.com/rabbitdelay/rabbitdelay/internal/naming"
	"github.com/rabbitdelay/rabbitdelay/internal/plan"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Limits of a StallWatch.
const (
	// A queue is watched for its TTL plus a margin. The margin equals the TTL, but is at least minBeyond and at most
	// maxBeyond. During a shorter watch, a busy broker or a steady flow of messages could look like a standstill.
	minBeyond, maxBeyond = 5 * time.Second, time.Minute
	// FiguresLag is the maximum age of the management API's figures.
	FiguresLag = 11 * time.Second
	// inTransit is the maximum number of a quorum queue's dead letters that are normally in transit at the same time. A
	// queue is watched if it has more dead letters in transit than this, or more than it had ready messages.
	inTransit = 32
)

// Delay is a queue in which messages wait until its TTL has passed.
type Delay struct {
	Layout string
	Next   string // the exchange to which it dead-letters; queues of one position share it
	TTL    time.Duration
}

// feeds reports whether messages may move from d directly to the given queue.
func (d Delay) feeds(to Delay) bool {
	return d.Layout == to.Layout && d.Next != to.Next && d.TTL > to.TTL
}

// Delays returns the delay queues of a broker by name. It omits queues in which each message has its own due time.
func Delays(cfg Config, live plan.State) map[string]Delay {
	cfg = cfg.WithDefaults()
	described := map[string]topology.Queue{}
	for _, q := range cfg.Want.Queues {
		described[q.Name] = q
	}
	out := map[string]Delay{}
	for name, have := range live.Queues {
		q, ours := described[name]
		if have.ArgumentsKnown {
			q = have.Described(name)
		}
		layout, ok := naming.DelaysOf(cfg.Prefix, name)
		if _, theirs := foreign.System(name); ok && q.IsDelay() && !q.Native() && (ours || !theirs) {
			out[name] = Delay{layout, q.DeadLetter.Exchange, *q.MessageTTL}
		}
	}
	return out
}

// Observation contains the counts of the delay queues at one moment.
type Observation struct {
	At    time.Time
	Ready map[string]int64 // the broker's own counts at that moment
	// All means that Ready contains every delay queue. A watch begins only with such an observation.
	All     bool
	Figures map[string]Figures // the management API's figures, up to FiguresLag older than Read; nil if they were not read
	Read    time.Time
}

// Figures are a queue's figures that only the management API shows.
type Figures struct {
	Ready     int64
	Leaving   int64 // dead letters in transit
	Published int64 // number of messages published by channels since the broker began to count
}

// StalledQueue is a delay queue that keeps messages for longer than its TTL.
type StalledQueue struct {
	Queue    string        `json:"queue"`
	TTL      time.Duration `json:"-"`
	Messages int64         `json:"messages"` // messages that are ready, or dead letters in transit
	Kept     int64         `json:"kept"`     // a lower bound of the number of messages that stayed during the whole watch
	For      time.Duration `json:"-"`        // the duration of the watch
}

// StallWatch finds delay queues that keep messages for longer than their TTL, from several observations of their
// counts. It consumes no messages and does no I/O. The zero value is ready to use.
//
// A queue is moving if its count falls between two observations. If the count has not fallen for longer than the TTL,
// then unless the queue stands still, all messages now in the queue have arrived since the watch began. The number of
// arrivals is at most the sum of three figures: the messages that channels have published to the queue and to the
// queues that dead-letter towards it, the decrease in these queues' counts, and the dead letters that were in transit.
// If the queue has more messages than that, the excess messages have stayed for too long.
//
// The same applies to a queue's dead letters in transit. The number of stuck dead letters is at least the number of the
// queue's messages that were not ready when the watch began and have not arrived since.
type StallWatch struct {
	queues  map[string]*watched
	figures map[string]Figures
	leaving *watched // the dead letters of all queues; nil without the management API's figures
	stuck   map[string]StalledQueue
}

// watched is the state of a queue whose count has not fallen.
type watched struct {
	since   Observation        // the first observation of the watch
	figures map[string]Figures // the management API's figures at the first observation, or newer
	ready   int64              // the count in the last observation
	then    int64              // the count at until
	until   Observation        // the first observation after the TTL plus the margin, or a later one; zero before that
	found   *StalledQueue
}

// Take adds an observation, which must be later than the previous ones.
func (s *StallWatch) Take(delays map[string]Delay, l Observation) {
	if s.queues == nil {
		s.queues = map[string]*watched{}
	}
	if l.Figures != nil && s.figures == nil {
		s.figures = l.Figures
	}
	for name, d := range delays {
		ready, counted := l.Ready[name]
		if !counted {
			continue
		}
		w := s.queues[name]
		if ready == 0 || w != nil && ready < w.ready {
			delete(s.queues, name)
			w = nil
		}
		if ready > 0 {
			s.watch(delays, name, d, w, l)
		}
	}
	maps.DeleteFunc(s.queues, func(name string, _ *watched) bool { _, there := delays[name]; return !there })
	s.watchLeaving(delays, l)
	if l.Figures != nil {
		s.figures = l.Figures
	}
}

func (s *StallWatch) watchLeaving(delays map[string]Delay, l Observation) {
	w := s.leaving
	switch {
	case w == nil && l.All && l.Figures != nil:
		s.leaving = &watched{since: l, figures: l.Figures}
	case w == nil:
	case w.until.At.IsZero() && l.At.Sub(w.since.At) > minBeyond:
		w.until = l
	case !w.until.At.IsZero() && l.Figures != nil && l.Read.Sub(w.until.At) >= FiguresLag:
		s.leaving, s.stuck = nil, map[string]StalledQueue{}
		for name, d := range delays {
			came, known := w.came(delays, name, l.Figures)
			f := l.Figures[name]
			if kept := f.Leaving + f.Ready - w.since.Ready[name] - came; known && f.Leaving > 0 && kept > 0 {
				s.stuck[name] = StalledQueue{Queue: name, TTL: d.TTL, Messages: f.Leaving, Kept: min(kept, f.Leaving), For: w.until.At.Sub(w.since.At)}
			}
		}
		if l.All {
			s.leaving = &watched{since: l, figures: l.Figures}
		}
	}
}

func (s *StallWatch) watch(delays map[string]Delay, name string, d Delay, w *watched, l Observation) {
	switch {
	case w == nil && l.All:
		s.queues[name] = &watched{since: l, figures: s.figures, ready: l.Ready[name]}
		return
	case w == nil:
		return
	case w.until.At.IsZero() && l.At.Sub(w.since.At) > d.TTL+min(max(d.TTL, minBeyond), maxBeyond):
		w.then, w.until = l.Ready[name], l
	case !w.until.At.IsZero() && l.Figures != nil && l.Read.Sub(w.until.At) >= FiguresLag:
		came, known := w.came(delays, name, l.Figures)
		w.found = nil
		if kept := w.then - came; known && kept > 0 {
			w.found = &StalledQueue{Queue: name, TTL: d.TTL, Messages: l.Ready[name], Kept: kept, For: w.until.At.Sub(w.since.At)}
			w.then, w.until = l.Ready[name], l
		} else {
			s.queues[name] = &watched{since: l, figures: s.figures}
			if !l.All {
				delete(s.queues, name)
				return
			}
		}
	}
	s.queues[name].ready = l.Ready[name]
}

// came returns the maximum number of messages that may have arrived in a queue between since and until. The figures in
// now must be newer than both times. The result known is false if the number is unknown.
func (w *watched) came(delays map[string]Delay, name string, now map[string]Figures) (n int64, known bool) {
	if w.figures == nil {
		return 0, false
	}
	before, after := int64(0), int64(0)
	for other, d := range delays {
		if other != name && !d.feeds(delays[name]) {
			continue
		}
		published := now[other].Published - w.figures[other].Published
		was, counted := w.since.Ready[other]
		if published < 0 || !counted {
			return 0, false // the broker's counters were reset, or it does not show the queue
		}
		n += published
		if other != name {
			before += was
			after += w.until.Ready[other]
			n += max(now[other].Leaving, w.figures[other].Leaving)
		}
	}
	return max(0, n+before-after), true
}

// Open returns the names of the undecided queues that may stand still and whose TTL does not exceed the parameter
// longest, and how many of them wait for newer figures of the management API. If longest is more than 5 s, it includes
// queues with stuck dead letters, because the watch for dead letters takes 5 s for any TTL.
func (s *StallWatch) Open(delays map[string]Delay, longest time.Duration) (names []string, waiting int) {
	for name, w := range s.queues {
		if delays[name].TTL > longest || w.found != nil {
			continue
		}
		names = append(names, name)
		if !w.until.At.IsZero() {
			waiting++
		}
	}
	if w := s.leaving; w != nil && longest > minBeyond {
		for name, f := range w.figures {
			if f.Leaving <= min(w.since.Ready[name], inTransit) || slices.Contains(names, name) {
				continue
			}
			names = append(names, name)
			if !w.until.At.IsZero() {
				waiting++
			}
		}
	}
	slices.Sort(names)
	return names, waiting
}

// Found returns the queues that stand still, sorted by TTL.
func (s *StallWatch) Found() []StalledQueue {
	all := slices.Collect(maps.Values(s.stuck))
	for name, w := range s.queues {
		if _, listed := s.stuck[name]; w.found != nil && !listed {
			all = append(all, *w.found)
		}
	}
	slices.SortFunc(all, func(a, b StalledQueue) int { return cmp.Or(cmp.Compare(a.TTL, b.TTL), cmp.Compare(a.Queue, b.Queue)) })
	return all
}

// settlesAfter is the time after a node's start by which messages that became due around the start have moved on, even
// without the setting in advanced.config. It is twice the default of dead_letter_worker_publisher_confirm_timeout.
const settlesAfter = 6 * time.Minute

func (x *examination) checkStandstill() {
	names := texts(x.snap.Standing, func(s StalledQueue) string { return s.Queue })
	figures := texts(x.snap.Standing, func(s StalledQueue) string {
		return fmt.Sprintf("%s (at least %d of %d for %s)", s.Queue, s.Kept, s.Messages, topology.FormatDuration(s.For.Round(time.Second)))
	})
	why, fix := x.whyStandstill()
	x.about(names, Finding{ID: "delay-standstill", Severity: SeverityCritical,
		What: fmt.Sprintf("%s messages for longer than the TTL, and none has left the queue: %s.", shown.Count(len(names), "delay queue keeps", "delay queues keep"), list(figures)),
		Why:  "They are late, with everything behind them. " + why, Fix: fix,
	})
}

// whyStandstill returns the cause of a standstill and what to do. If a node has recently started without the setting in
// advanced.config, that is the cause. Otherwise whyStandstill lists the possible causes for the broker's version.
func (x *examination) whyStandstill() (why, fix string) {
	const look = "rabbitmqctl eval 'erlang:universaltime().'   # on each node; docs/operations.md, \"Messages have stopped arriving\", describes what to do next"
	var started []string
	last := settlesAfter
	for _, n := range x.snap.Nodes {
		if n.withoutAdvanced() && n.Uptime > 0 && n.Uptime < settlesAfter {
			started = append(started, fmt.Sprintf("%s %s ago", n.Name, topology.FormatDuration(n.Uptime.Round(time.Second))))
			last = min(last, n.Uptime)
		}
	}
	if len(started) > 0 {
		wait := topology.FormatDuration((settlesAfter - last).Round(time.Second))
		return fmt.Sprintf("Nodes started without advanced.config: %s. Messages that became due around the start are sent again after dead_letter_worker_publisher_confirm_timeout, "+
				"which is 3 minutes by default. The queues continue within %s, and no message is lost.", list(started), wait),
			"sleep " + fmt.Sprint(int((settlesAfter - last).Seconds())) + " && " + x.run("doctor") + "   # it should then find no such queue; docs/advanced.config lowers the timeout to 10 s from the next start on"
	}
	causes := []string{"after a node started without advanced.config, for up to " + topology.FormatDuration(settlesAfter)}
	if x.snap.NodesComplete && !slices.ContainsFunc(x.snap.Nodes, func(n Node) bool { return n.Uptime == 0 || n.withoutAdvanced() && n.Uptime < settlesAfter }) {
		causes = nil // every node has advanced.config, or has been up for settlesAfter
	}
	causes = append(causes, "after a node's clock was set back and the node restarted, until the clock has caught up", "in a queue without a majority of its members, until these are back",
		"while a destination refuses messages")
	if x.version.Before(4, 0, 0) || !x.version.Known() {
		causes = append(causes, "on RabbitMQ 3.10 after a full disk, until a restart")
	}
	if x.version.Before(4, 2, 7) || x.version.AtLeast(4, 3, 0) && x.version.Before(4, 3, 1) || !x.version.Known() {
		causes = append(causes, "before RabbitMQ 4.2.7 and 4.3.1 sometimes after two changes of the queue's leader at the same time, until the next change")
	}
	if x.version.AtLeast(4, 0, 0) && x.version.Before(4, 3, 0) || !x.version.Known() {
		causes = append(causes, "in all queues of a node before RabbitMQ 4.3, sometimes after a virtual host was deleted while a client declared delay queues in it "+
			"(the process rabbit_fifo_dlx_sup is then gone), until the node restarts")
	}
	return "Delay queues stall in these cases: " + strings.Join(causes, "; ") + ".", look
}

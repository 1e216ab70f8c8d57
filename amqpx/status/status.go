// Package status answers the first question of a bad night: what waits, where, and
// until when. Take reads a broker and a business database; what it returns is data
// for a terminal, a page or an alert, and says what could not be seen.
package status

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/doctor"
)

// Status is what was seen at one moment. Counts of the management API are up to 5 s
// old.
type Status struct {
	At time.Time `json:"at"`
	// Broker is nil if it could not be reached; Unseen says why.
	Broker *Broker `json:"broker"`
	// Layouts are the sets of delay queues, those of the configuration first.
	Layouts []Layout `json:"layouts"`
	DueSoon []Due    `json:"due_soon"`
	// Destinations are the configured ones, and with the management API all that
	// are bound.
	Destinations []Destination `json:"destinations"`
	Parked       Lying         `json:"parked"`
	// Tasks is nil without a database, or if it could not be read.
	Tasks *Tasks `json:"tasks"`
	// Clients are the connections of rabbitdelay's clients and relays, by name. Nil:
	// unknown; it needs the management API.
	Clients  []Client         `json:"clients"`
	Findings []doctor.Finding `json:"findings"`
	// Unseen is what could not be seen, and why.
	Unseen []doctor.Unseen `json:"unseen"`
	// Notes say what the look has disturbed, and what is worth knowing.
	Notes []string `json:"notes"`
}

// Complete tells whether everything could be seen.
func (s Status) Complete() bool { return len(s.Unseen) == 0 }

// Broker is what was looked at, and by what means.
type Broker struct {
	Version string `json:"version"`
	Vhost   string `json:"vhost"`
	Source  string `json:"source"` // management API, or AMQP
}

// Count is how many messages a queue has. Ready ones wait; Leaving ones are dead
// letters on their way, which the next queue has not confirmed; Unacked ones a
// consumer holds. AMQP alone knows Ready only.
type Count struct {
	Ready   int64 `json:"ready"`
	Leaving int64 `json:"leaving"`
	Unacked int64 `json:"unacked"`
}

// Total is all of them.
func (c Count) Total() int64 { return c.Ready + c.Leaving + c.Unacked }

func (c Count) plus(d Count) Count {
	return Count{c.Ready + d.Ready, c.Leaving + d.Leaving, c.Unacked + d.Unacked}
}

// Layout is a set of delay queues, or the plugin's exchange.
type Layout struct {
	Name string `json:"name"`
	// Earlier: the configuration does not have these queues; they belong to a
	// layout that was, or to another process.
	Earlier bool    `json:"earlier"`
	Queues  int     `json:"queues"`
	Waiting Count   `json:"waiting"`
	Delays  []Delay `json:"delays"` // queues that are not empty, the shortest first
}

// Drained tells whether nothing waits in the layout.
func (l Layout) Drained() bool { return l.Waiting.Total() == 0 }

// Delay is a delay queue.
type Delay struct {
	Queue string `json:"queue"`
	TTL   Span   `json:"ttl_ms"`
	// Latest is after what time, from when it came into the queue, a message is due
	// at the latest: the TTL, and those of the shorter queues that it may still pass.
	Latest  Span  `json:"latest_ms"`
	Waiting Count `json:"waiting"`

	place string // in its layout
}

// Span is a duration, in JSON whole milliseconds.
type Span time.Duration

// MarshalJSON gives milliseconds.
func (s Span) MarshalJSON() ([]byte, error) {
	return strconv.AppendInt(nil, time.Duration(s).Milliseconds(), 10), nil
}

// UnmarshalJSON reads milliseconds.
func (s *Span) UnmarshalJSON(data []byte) error {
	ms, err := strconv.ParseInt(string(data), 10, 64)
	*s = Span(time.Duration(ms) * time.Millisecond)
	return err
}

// Due is what will be due within a time.
type Due struct {
	Within Span `json:"within_ms"`
	// OnBroker is at least so many messages: those in queues that all leave in
	// time. Others may have little of a long delay left.
	OnBroker int64 `json:"on_broker_at_least"`
	// Tasks are pending ones of the database, sent to the broker or not; nil:
	// unknown.
	Tasks *int64 `json:"tasks"`
}

// Destination is a queue, or an exchange with a routing key.
type Destination struct {
	Name string `json:"name"` // the queue, or exchange:routing-key
	// Queue is the destination's queue, or the route queue before its exchange.
	Queue     string `json:"queue"`
	Exchange  bool   `json:"exchange"`
	Exists    bool   `json:"exists"`
	Waiting   Count  `json:"waiting"`
	Consumers int64  `json:"consumers"`
	Dead      *Lying `json:"dead"` // nil without a dead-letter queue
}

// Unconsumed tells whether a queue has no consumer.
func (d Destination) Unconsumed() bool { return !d.Exchange && d.Exists && d.Consumers == 0 }

// Lying is what lies in a dead-letter queue or in the parked queue.
type Lying struct {
	Queue    string `json:"queue"`
	Messages int64  `json:"messages"`
	// Looked is how many of them, from the head, Groups tells of.
	Looked int     `json:"looked_at"`
	Groups []Group `json:"groups"`
	// Oldest is since when the first of those lies there; nil: unknown.
	Oldest *time.Time `json:"oldest"`
}

// Group is messages that lie somewhere for the same reason.
type Group struct {
	Destination string `json:"destination"` // where they belong; empty if unknown
	Reason      string `json:"reason"`      // empty for what is no dead letter
	Messages    int    `json:"messages"`
	Error       string `json:"error"` // of the newest of them; empty if unknown
}

// Client is the connections of one name.
type Client struct {
	Name        string `json:"name"`
	Connections int    `json:"connections"`
	Blocked     int    `json:"blocked"` // by an alarm
}

// Tasks are those of a business database.
type Tasks struct {
	Counts []TaskCount `json:"counts"`
	// Overdue is the oldest pending task that is due; nil if there is none.
	Overdue *Overdue `json:"oldest_overdue"`
	// Unsent tasks are due for 10 s and were never given to the broker, Unhandled
	// ones were, and are due for 2 min. More tells that not all were counted.
	Unsent    int64 `json:"unsent"`
	Unhandled int64 `json:"unhandled"`
	More      bool  `json:"more"`

	late doctor.Tasks
	due  []int64 // within each of soon
}

// TaskCount is how many tasks of a queue have a status. Queue is empty for those
// whose destination is an exchange.
type TaskCount struct {
	Queue  string          `json:"queue"`
	Status schedule.Status `json:"status"`
	Count  int64           `json:"count"`
}

// Overdue is a task that should have happened.
type Overdue struct {
	ID          string    `json:"id"`
	Destination string    `json:"destination"`
	Due         time.Time `json:"due"`
	Sent        bool      `json:"sent"` // to the broker
	Attempts    int       `json:"attempts"`
	LastError   string    `json:"last_error"`
}

// soon are the times of DueSoon.
var soon = []time.Duration{time.Minute, 10 * time.Minute, time.Hour, 24 * time.Hour}

// seen is what Take has read.
type seen struct {
	at     time.Time
	cfg    doctor.Config
	snap   *doctor.Snapshot        // nil: the broker could not be reached
	looks  map[string]amqpx.Peeked // by queue
	known  map[string]Lying        // likewise, from an earlier look
	tasks  *Tasks
	unseen []doctor.Unseen
	notes  []string
}

// status makes one of what was seen. It does no I/O.
func (s seen) status() Status {
	out := Status{At: s.at, Tasks: s.tasks, Unseen: s.unseen, Notes: s.notes}
	out.Layouts, out.Destinations, out.Findings = []Layout{}, []Destination{}, []doctor.Finding{}
	if s.snap != nil {
		rep := doctor.Diagnose(s.cfg, *s.snap)
		out.Broker = &Broker{Version: s.snap.Version, Vhost: s.cfg.Vhost, Source: s.snap.Live.Source}
		out.Layouts, out.Destinations = s.layouts(), s.destinations()
		out.Parked = s.lying(topology.ParkedQueue(s.cfg.Prefix))
		out.Clients = clients(s.snap.Clients)
		out.Findings, out.Unseen, out.Notes = rep.Findings, append(out.Unseen, rep.Unseen...), append(out.Notes, rep.Notes...)
	}
	for i, within := range soon {
		d := Due{Within: Span(within)}
		for _, l := range out.Layouts {
			for _, q := range l.Delays {
				if q.Latest <= d.Within {
					d.OnBroker += q.Waiting.Total()
				}
			}
		}
		if s.tasks != nil {
			d.Tasks = &s.tasks.due[i]
		}
		out.DueSoon = append(out.DueSoon, d)
	}
	return out
}

// count is what a queue has, by the better of the two sources.
func (s seen) count(queue string) Count {
	if q, ok := s.snap.Queues[queue]; ok {
		return Count{q.Ready, q.Leaving, q.Unacked}
	}
	return Count{Ready: s.snap.Live.Queues[queue].Messages}
}

// layouts are those on the broker, what the configuration has before the others.
func (s seen) layouts() []Layout {
	type key struct {
		earlier bool
		name    string
	}
	wanted := map[string]topology.Queue{}
	for _, q := range s.cfg.Want.Queues {
		wanted[q.Name] = q
	}
	// Queues of one position of a layout dead-letter to one exchange. What is left of
	// a delay behind them is less than the shortest of them.
	shortest := map[string]Span{}
	place := func(l topology.Layout, q topology.Queue) string { return l.Name + " " + q.DeadLetter.Exchange }
	found := map[key]*Layout{}
	at := func(name string, described bool) *Layout {
		l, _ := topology.LayoutOf(s.cfg.Prefix, name)
		k := key{!described, l.Name}
		if found[k] == nil {
			found[k] = &Layout{Name: l.Name, Earlier: !described, Delays: []Delay{}}
		}
		return found[k]
	}
	for name, live := range s.snap.Live.Queues {
		q, described := wanted[name]
		if live.ArgumentsKnown {
			q = live.Described(name)
		}
		of, ok := topology.LayoutOf(s.cfg.Prefix, name)
		if !ok || !q.IsDelay() {
			continue
		}
		l, n, ttl := at(name, described), s.count(name), Span(*q.MessageTTL)
		l.Queues++
		if least, ok := shortest[place(of, q)]; !ok || ttl < least {
			shortest[place(of, q)] = ttl
		}
		l.Waiting = l.Waiting.plus(n)
		if n.Total() > 0 {
			l.Delays = append(l.Delays, Delay{Queue: name, TTL: ttl, Waiting: n, place: place(of, q)})
		}
	}
	for name, x := range s.snap.Live.Exchanges {
		if x.HeldKnown { // the plugin's
			if _, ok := topology.LayoutOf(s.cfg.Prefix, name); ok {
				l := at(name, slices.ContainsFunc(s.cfg.Want.Exchanges, func(e topology.Exchange) bool { return e.Name == name }))
				l.Waiting.Ready += x.Held
			}
		}
	}
	out := make([]Layout, 0, len(found))
	for _, l := range found {
		for i, d := range l.Delays {
			l.Delays[i].Latest = d.TTL + shortest[d.place]
		}
		slices.SortFunc(l.Delays, func(a, b Delay) int { return cmp.Or(cmp.Compare(a.TTL, b.TTL), cmp.Compare(a.Queue, b.Queue)) })
		out = append(out, *l)
	}
	slices.SortFunc(out, func(a, b Layout) int {
		if a.Earlier != b.Earlier {
			if a.Earlier {
				return 1
			}
			return -1
		}
		return cmp.Compare(a.Name, b.Name)
	})
	return out
}

// destinations are the configured ones, and queues that are bound besides.
func (s seen) destinations() []Destination {
	var out []Destination
	listed := map[string]bool{}
	add := func(d topology.Destination) {
		target := d.TargetQueue(s.cfg.Prefix)
		if listed[target] {
			return
		}
		listed[target] = true
		q, exists := s.snap.Live.Queues[target]
		one := Destination{Name: d.Queue, Queue: target, Exchange: d.ToExchange(), Exists: exists, Waiting: s.count(target), Consumers: q.Consumers}
		if one.Exchange {
			one.Name = d.Exchange + ":" + d.RoutingKey
		} else if dead := d.DeadLetterQueue(); s.has(dead) {
			lying := s.lying(dead)
			one.Dead = &lying
		}
		out = append(out, one)
	}
	for _, d := range s.cfg.Want.Destinations {
		add(d)
	}
	for _, q := range s.bound() {
		add(topology.Destination{Queue: q})
	}
	slices.SortFunc(out, func(a, b Destination) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

func (s seen) has(queue string) bool { _, ok := s.snap.Live.Queues[queue]; return ok }

// bound are the queues that the delivery exchange leads to, the strategies' own
// left out.
func (s seen) bound() []string {
	queues := map[string]bool{}
	for _, b := range s.snap.Live.Bindings {
		if b.Exchange == topology.DeliveryExchange(s.cfg.Prefix) && b.Queue != "" && !topology.Reserved(s.cfg.Prefix, b.Queue) {
			queues[b.Queue] = true
		}
	}
	return slices.Sorted(maps.Keys(queues))
}

// deadLetterQueues are those that have messages, with the parked queue.
func (s seen) deadLetterQueues() []string {
	var out []string
	for _, d := range s.destinations() {
		if d.Dead != nil && d.Dead.Messages > 0 {
			out = append(out, d.Dead.Queue)
		}
	}
	if parked := topology.ParkedQueue(s.cfg.Prefix); s.count(parked).Total() > 0 {
		out = append(out, parked)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// lying is what was seen in a queue.
func (s seen) lying(queue string) Lying {
	if l, ok := s.known[queue]; ok {
		return l
	}
	l := Lying{Queue: queue, Messages: s.count(queue).Total(), Groups: []Group{}}
	got, ok := s.looks[queue]
	if !ok {
		return l
	}
	l.Messages, l.Looked = max(l.Messages, int64(len(got.Messages)+got.More)), len(got.Messages)
	type key struct{ destination, reason string }
	at, newest := map[key]int{}, map[key]time.Time{}
	for _, m := range got.Messages {
		d := m.Destination.Queue
		if m.Destination.Exchange != "" {
			d = m.Destination.Exchange + ":" + m.Destination.RoutingKey
		}
		k := key{d, m.Reason}
		i, ok := at[k]
		if !ok {
			i = len(l.Groups)
			at[k] = i
			l.Groups = append(l.Groups, Group{Destination: d, Reason: m.Reason})
		}
		l.Groups[i].Messages++
		if m.Error != "" && !m.Died.Before(newest[k]) {
			l.Groups[i].Error, newest[k] = m.Error, m.Died
		}
		if died := m.Died; !died.IsZero() && (l.Oldest == nil || died.Before(*l.Oldest)) {
			l.Oldest = &died
		}
	}
	slices.SortStableFunc(l.Groups, func(a, b Group) int { return cmp.Compare(b.Messages, a.Messages) })
	return l
}

// clients are connections by name.
func clients(list []doctor.Connection) []Client {
	if list == nil {
		return nil
	}
	by := map[string]*Client{}
	for _, k := range list {
		if by[k.Name] == nil {
			by[k.Name] = &Client{Name: k.Name}
		}
		by[k.Name].Connections++
		if k.Blocked {
			by[k.Name].Blocked++
		}
	}
	out := make([]Client, 0, len(by))
	for _, name := range slices.Sorted(maps.Keys(by)) {
		out = append(out, *by[name])
	}
	return out
}

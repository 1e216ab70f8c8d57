package status

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/doctor"
	"github.com/rabbitdelay/rabbitdelay/internal/foreign"
	"github.com/rabbitdelay/rabbitdelay/internal/naming"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// dueWithin lists the time spans of DueSoon.
var dueWithin = []time.Duration{time.Minute, 10 * time.Minute, time.Hour, 24 * time.Hour}

// seen is the data that Take has read.
type seen struct {
	at         time.Time
	cfg        doctor.Config
	snap       *doctor.Snapshot          // nil if the broker could not be reached
	looks      map[string]inspect.Peeked // by queue name
	known      map[string]DeadLetters    // by queue name, from an earlier Take
	tasks      *Tasks
	unchecked  []doctor.Unchecked
	notes      []string
	clocks     measured
	standstill *doctor.StallWatch
	suspect    bool // the broker has too few messages for the tasks that were sent
}

// nothing returns a Status that only says what could not be read. The lists of what the broker has are nil, because
// null in JSON means that a list is unknown.
func (s seen) nothing() Status {
	return Status{
		At: s.at, DueSoon: []Due{}, Parked: DeadLetters{Queue: topology.ParkedQueue(s.cfg.Prefix), Unknown: true, Groups: []Group{}},
		Unchecked: append([]doctor.Unchecked{}, s.unchecked...), Notes: append([]string{}, s.notes...),
	}
}

// status converts the data that was read into a Status. It does no I/O.
func (s seen) status() Status {
	out := s.nothing()
	out.Tasks, out.clocks, out.standstill, out.suspect = s.tasks, s.clocks, s.standstill, s.suspect
	if out.Tasks != nil {
		out.Tasks.Sent = s.sent()
	}
	if s.snap != nil {
		rep := doctor.Diagnose(s.cfg, *s.snap)
		messages, unseen := doctor.Messages(s.cfg, s.snap.Live)
		out.empty = s.snap.Live.BindingsKnown && messages == 0 && len(unseen) == 0
		out.Broker = &Broker{Version: s.snap.Version, Vhost: s.cfg.Vhost, Source: s.snap.Live.Source}
		out.Layouts, out.Destinations = s.layouts(), s.destinations()
		out.Parked = s.deadLetters(topology.ParkedQueue(s.cfg.Prefix))
		out.Clients = clients(s.snap.Clients)
		if s.snap.Alarms != nil {
			out.Alarms = []string{}
		}
		for _, a := range s.snap.Alarms {
			out.Alarms = append(out.Alarms, a.Resource+" on "+a.Node)
		}
		out.Findings, out.Unchecked, out.Notes = rep.Findings, append(out.Unchecked, rep.Unchecked...), append(out.Notes, rep.Notes...)
	}
	for i, within := range dueWithin {
		d := Due{Within: Span(within)}
		if s.snap != nil {
			d.OnBroker = new(leaving(out.Layouts, d.Within))
		}
		if s.tasks != nil {
			d.Tasks = &s.tasks.due[i]
		}
		out.DueSoon = append(out.DueSoon, d)
	}
	return out
}

// leaving counts the messages in queues from which every message departs within the given time.
func leaving(layouts []Layout, within Span) (n int64) {
	for _, l := range layouts {
		for _, q := range l.Delays {
			if q.Latest <= within {
				n += q.Waiting.Total()
			}
		}
	}
	return n
}

// sent summarises the tasks that were sent and are not due yet. It returns nil if there are none.
func (s seen) sent() *Sent {
	t := s.tasks.late
	if t.Ahead == 0 {
		return nil
	}
	out := &Sent{Tasks: t.Ahead, More: t.AheadMore, ResendFrom: t.ResendFrom, ResendTo: t.ResendTo}
	if s.snap != nil && s.snap.Live.BindingsKnown { // the management API shows all queues
		if missing, unknown := doctor.Missing(s.cfg, *s.snap); unknown == "" {
			out.Missing = &missing
		}
	}
	return out
}

// count returns the message counts of a queue.
func (s seen) count(queue string) Count {
	q := s.snap.Live.Queues[queue]
	n := Count{Ready: q.Ready(), Unknown: q.Unknown()}
	if s.snap.Live.BindingsKnown && !q.Partial() { // the management API has counted the messages that are not ready
		n.Leaving, n.Unacked = new(q.Leaving), new(q.Unacked)
	}
	return n
}

// layouts returns the layouts on the broker. The layouts of the configuration are first.
func (s seen) layouts() []Layout {
	type key struct {
		earlier bool
		name    string
	}
	wanted := map[string]topology.Queue{}
	for _, q := range s.cfg.Want.Queues {
		wanted[q.Name] = q
	}
	// Queues at the same position of a layout dead-letter to the same exchange. The delay that remains after such a
	// queue is less than the TTL of the shortest of them.
	shortest := map[string]Span{}
	place := func(layout string, q topology.Queue) string { return layout + " " + q.DeadLetter.Exchange }
	found := map[key]*Layout{}
	at := func(layout string, described bool) *Layout {
		k := key{!described, layout}
		if found[k] == nil {
			found[k] = &Layout{Name: layout, Earlier: !described, Waiting: Count{Leaving: new(int64), Unacked: new(int64)}, Delays: []Delay{}}
		}
		return found[k]
	}
	for name, live := range s.snap.Live.Queues {
		q, described := wanted[name]
		if live.ArgumentsKnown {
			q = live.Described(name)
		}
		of, ok := naming.DelaysOf(s.cfg.Prefix, name)
		if _, theirs := foreign.System(name); !ok || !q.IsDelay() || theirs && !described {
			continue
		}
		l, n, ttl := at(of, described), s.count(name), Span(*q.MessageTTL)
		l.Queues++
		if least, ok := shortest[place(of, q)]; !ok || ttl < least {
			shortest[place(of, q)] = ttl
		}
		l.Waiting = l.Waiting.plus(n)
		if n.Total() > 0 && !q.Native() { // in native queues each message has its own due time
			l.Delays = append(l.Delays, Delay{Queue: name, TTL: ttl, Waiting: n, place: place(of, q)})
		}
	}
	for name, x := range s.snap.Live.Exchanges {
		if x.HeldKnown { // the plugin's exchange
			if of, ok := naming.LayoutOf(s.cfg.Prefix, name); ok {
				l := at(of.Name, slices.ContainsFunc(s.cfg.Want.Exchanges, func(e topology.Exchange) bool { return e.Name == name }))
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

// destinations returns the configured destinations, and all other queues that are bound to the delivery exchange.
func (s seen) destinations() []Destination {
	out := []Destination{}
	listed := map[string]bool{}
	add := func(d topology.Destination, target string) {
		if listed[target] {
			return
		}
		listed[target] = true
		q, exists := s.snap.Live.Queues[target]
		one := Destination{Name: d.String(), Queue: target, Exchange: d.ToExchange(), Exists: exists, Waiting: s.count(target)}
		if !one.Waiting.Unknown {
			one.Consumers = new(q.Consumers)
		}
		dead := d.DeadLetterQueue()
		if _, there := s.snap.Live.Queues[dead]; there && !one.Exchange {
			one.Dead = new(s.deadLetters(dead))
		}
		out = append(out, one)
	}
	for _, d := range s.cfg.Want.Destinations {
		add(d, d.TargetQueue(s.cfg.Prefix))
	}
	for _, q := range s.snap.Live.Delivered(s.cfg.Want) {
		add(topology.Destination{Queue: q}, q)
	}
	for _, r := range s.snap.Live.Routes(s.cfg.Prefix, s.cfg.Want) {
		add(r.Destination, r.Queue)
	}
	slices.SortFunc(out, func(a, b Destination) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// deadLetterQueues returns the queues that contain dead letters, and the parked queue if it is not empty.
func (s seen) deadLetterQueues() []string {
	var out []string
	for _, d := range s.destinations() {
		if d.Dead != nil && d.Dead.Messages > 0 && !s.silent(d.Dead.Queue) {
			out = append(out, d.Dead.Queue)
		}
	}
	if parked := topology.ParkedQueue(s.cfg.Prefix); s.count(parked).Total() > 0 && !s.silent(parked) {
		out = append(out, parked)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// silent reports whether a queue does not answer.
func (s seen) silent(queue string) bool { return s.snap.Live.Queues[queue].Unavailable != "" }

// deadLetters summarises the messages in a dead-letter queue or in the parked queue.
func (s seen) deadLetters(queue string) DeadLetters {
	if l, ok := s.known[queue]; ok {
		return l
	}
	n := s.count(queue)
	l := DeadLetters{Queue: queue, Messages: n.Total(), Unknown: n.Unknown || s.snap.Live.Queues[queue].Doubtful, Held: n.InTransit(), Groups: []Group{}}
	got, ok := s.looks[queue]
	if !ok {
		return l
	}
	l.Sampled = len(got.Messages)
	type key struct{ destination, reason string }
	at, newest := map[key]int{}, map[key]time.Time{}
	for _, m := range got.Messages {
		k := key{m.Destination.String(), m.Reason}
		i, ok := at[k]
		if !ok {
			i = len(l.Groups)
			at[k] = i
			l.Groups = append(l.Groups, Group{Destination: k.destination, Reason: m.Reason})
		}
		l.Groups[i].Messages++
		if m.Error != "" && !m.Died.Before(newest[k]) {
			l.Groups[i].Error, newest[k] = m.Error, m.Died
		}
		if died := m.Died.UTC(); !died.IsZero() && (l.Oldest == nil || died.Before(*l.Oldest)) {
			l.Oldest = &died
		}
	}
	slices.SortStableFunc(l.Groups, func(a, b Group) int { return cmp.Compare(b.Messages, a.Messages) })
	return l
}

// clients groups connections by name.
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

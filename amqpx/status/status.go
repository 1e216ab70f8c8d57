// Package status answers the first question of a bad night: what waits, where, and until when. Take reads a
// broker and a business database, and changes nothing. What it returns is data for a terminal, a page or an
// alert, with what could not be seen. It knows no printing.
//
// status.go has the model, take.go and tasks.go what is read, and seen.go how the model is made of that, without
// I/O.
package status

import (
	"strconv"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/topology/doctor"
)

// Status is what was seen at one moment. The ready messages of destinations' queues, dead letters and parked
// messages are counted at that moment; other counts come from the management API and are up to 10 s old.
type Status struct {
	At time.Time `json:"at"`
	// Broker is nil if it could not be reached; Unseen says why.
	Broker *Broker `json:"broker"`
	// Layouts are the sets of delay queues, those of the configuration first.
	Layouts []Layout `json:"layouts"`
	DueSoon []Due    `json:"due_soon"`
	// Destinations are the configured ones, and with the management API all that are bound.
	Destinations []Destination `json:"destinations"`
	Parked       Lying         `json:"parked"`
	// Tasks is nil without a database, or if it could not be read.
	Tasks *Tasks `json:"tasks"`
	// Clients are the connections of rabbitdelay's clients and relays, by name. Nil: unknown; it needs the
	// management API.
	Clients []Client `json:"clients"`
	// Alarms are the broker's, such as "memory on rabbit@a"; empty if there are none, or if they could not be
	// seen.
	Alarms   []string         `json:"alarms"`
	Findings []doctor.Finding `json:"findings"`
	// Unseen is what could not be seen, and why.
	Unseen []doctor.Unseen `json:"unseen"`
	// Notes name what the look has disturbed, and what else is worth knowing.
	Notes []string `json:"notes"`

	clocks     measured
	standstill *doctor.Standstill // which the next look goes on with; nil: none
}

// measured are the nodes' clocks, and when they were looked at.
type measured struct {
	clocks []doctor.Clock
	unseen []doctor.Unseen
	at     time.Time
}

// Complete reports whether everything could be seen.
func (s Status) Complete() bool { return len(s.Unseen) == 0 }

// Broker is what was looked at, and by what means.
type Broker struct {
	Version string `json:"version"`
	Vhost   string `json:"vhost"`
	Source  string `json:"source"` // management API, or AMQP
}

// Count is how many messages a queue has. Ready ones wait; Leaving ones are dead letters on their way, which the
// next queue has not confirmed; Unacked ones a consumer holds. AMQP alone knows Ready only.
type Count struct {
	Ready   int64 `json:"ready"`
	Leaving int64 `json:"leaving"`
	Unacked int64 `json:"unacked"`
	// Unknown: there may be more, because the user may not look at the queue, or at one of several.
	Unknown bool `json:"unknown,omitempty"`
}

func (c Count) plus(o Count) Count {
	return Count{c.Ready + o.Ready, c.Leaving + o.Leaving, c.Unacked + o.Unacked, c.Unknown || o.Unknown}
}

// Total returns the sum.
func (c Count) Total() int64 { return c.Ready + c.Leaving + c.Unacked }

// Layout is a set of delay queues, or the plugin's exchange.
type Layout struct {
	Name string `json:"name"`
	// Earlier: the configuration does not have these queues; they belong to a layout that was, or to another
	// process.
	Earlier bool  `json:"earlier"`
	Queues  int   `json:"queues"`
	Waiting Count `json:"waiting"`
	// Delays are the queues that are not empty, the shortest first; none of the native strategy, whose queues
	// hold messages until an instant that each has.
	Delays []Delay `json:"delays"`
}

// Drained reports whether it is known that nothing waits in the layout.
func (l Layout) Drained() bool { return l.Waiting == Count{} }

// Delay is a delay queue.
type Delay struct {
	Queue string `json:"queue"`
	TTL   Span   `json:"ttl_ms"`
	// Latest is after what time, from when it came into the queue, a message is due at the latest: the TTL, and
	// those of the shorter queues that it may still pass.
	Latest  Span  `json:"latest_ms"`
	Waiting Count `json:"waiting"`

	place string // in its layout
}

// Span is a duration, in JSON whole milliseconds.
type Span time.Duration

// MarshalJSON writes milliseconds.
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
	// OnBroker is at least so many messages: those in queues that all leave in time. Others may have little of a
	// long delay left.
	OnBroker int64 `json:"on_broker_at_least"`
	// Tasks are pending ones of the database, sent to the broker or not; nil: unknown.
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

// Unconsumed reports whether it is known that a queue has no consumer.
func (d Destination) Unconsumed() bool {
	return !d.Exchange && d.Exists && d.Consumers == 0 && !d.Waiting.Unknown
}

// Lying is what lies in a dead-letter queue or in the parked queue.
type Lying struct {
	Queue    string `json:"queue"`
	Messages int64  `json:"messages"`
	// Unknown: the user may not look at the queue.
	Unknown bool `json:"unknown,omitempty"`
	// Held of them are not ready: a consumer has them, such as a run of requeue.
	Held int64 `json:"held"`
	// Looked is the number of messages, from the head, that are in Groups.
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
	// Held are the destinations that are paused, have a ceiling, or are sent over a time what came due in a
	// pause. What waits for that is not overdue.
	Held []schedule.DestinationState `json:"held"`
	// Overdue is the oldest pending task that is due; nil if there is none.
	Overdue *Overdue `json:"oldest_overdue"`
	// Unsent tasks have been due for 10 s and were never given to the broker. Unhandled ones were, and have been
	// due for 2 min. More tells that not all were counted.
	Unsent    int64 `json:"unsent"`
	Unhandled int64 `json:"unhandled"`
	More      bool  `json:"more"`
	// Idle are recurring tasks that make no tasks at present although nobody has paused them, by name, with the
	// reason.
	Idle []doctor.IdleRecurring `json:"idle_recurring"`
	// Unlisted are the destinations of pending tasks that the configuration does not list and its relays refuse
	// to send to, by name.
	Unlisted []doctor.UnlistedTasks `json:"unlisted"`
	// Relays are those that run on the database, or died there within a week, the one seen last first; nil:
	// unknown.
	Relays []schedule.Relay `json:"relays"`

	late    doctor.Tasks
	due     []int64 // within each of soon
	unheard error   // why Relays are unknown
	read    time.Time
	took    time.Duration // to read them
}

// TaskCount is how many tasks of a queue have a status. Queue is empty for those whose destination is an
// exchange.
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

// Package status reports which messages and tasks are waiting, where, and until when. Take reads a broker and an
// application's database, and changes nothing. The result is data for a terminal, a page or an alert, and lists what
// could not be read. The package prints nothing.
//
// status.go defines the model, take.go and tasks.go read the data, and seen.go builds the model from it, without I/O.
package status

import (
	"strconv"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/doctor"
	"github.com/rabbitdelay/rabbitdelay/internal/plan"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
)

// Status is the state of the system at one moment. Ready messages in destinations' queues, dead letters and parked
// messages are counted at that moment; other counts come from the management API and are up to 10 s old.
type Status struct {
	At time.Time `json:"at"`
	// Broker is nil if the broker could not be reached; Unchecked has the reason.
	Broker *Broker `json:"broker"`
	// Layouts are the sets of delay queues, beginning with the ones of the configuration; nil if unknown.
	Layouts []Layout `json:"layouts"`
	DueSoon []Due    `json:"due_soon"`
	// Destinations are the configured destinations and, if the management API is available, all other queues and
	// exchanges that are bound to the delivery exchange. It is nil if unknown.
	Destinations []Destination `json:"destinations"`
	Parked       DeadLetters   `json:"parked"`
	// Tasks is nil if there is no database, or if it could not be read.
	Tasks *Tasks `json:"tasks"`
	// Clients are the connections of rabbitdelay's clients and relays, grouped by name. It is nil if unknown: only the
	// management API reports them.
	Clients []Client `json:"clients"`
	// Alarms are the broker's alarms, such as "memory on rabbit@a". It is nil if unknown: only the management API
	// reports them.
	Alarms []string `json:"alarms"`
	// Findings are the problems that the doctor found; nil if the broker could not be read.
	Findings []doctor.Finding `json:"findings"`
	// Unchecked lists what could not be read, and why.
	Unchecked []doctor.Unchecked `json:"unchecked"`
	// Notes list side effects of Take, and other remarks.
	Notes []string `json:"notes"`

	clocks     measured
	standstill *doctor.StallWatch // continued by the next Take; nil if there is none
	suspect    bool               // the broker had too few messages for the tasks that were sent
	empty      bool
}

// measured contains the nodes' clocks, the clocks that could not be measured, and the time of the measurement.
type measured struct {
	clocks    []doctor.Clock
	unchecked []doctor.Unchecked
	at        time.Time
}

// Empty reports whether the broker is known to have no messages except dead letters.
func (s Status) Empty() bool { return s.empty }

// Complete reports whether everything could be read.
func (s Status) Complete() bool { return len(s.Unchecked) == 0 }

// Broker is the broker that was read, and how it was read.
type Broker struct {
	Version string `json:"version"`
	Vhost   string `json:"vhost"`
	Source  string `json:"source"` // "management API" or "AMQP"
}

// Managed reports whether the management API was read. If it was, all queues and their messages are known unless
// another field says otherwise.
func (b *Broker) Managed() bool { return b != nil && b.Source == plan.ManagementAPI }

// Count is the number of messages in a queue. Ready messages wait in the queue. Leaving messages are dead letters that
// the next queue has not confirmed yet. Unacked messages are held by a consumer. Leaving and Unacked are nil if they
// are unknown, because only the management API has them, and only a few seconds after the queue was declared.
type Count struct {
	Ready   int64  `json:"ready"`
	Leaving *int64 `json:"leaving"`
	Unacked *int64 `json:"unacked"`
	// Unknown means that there may be more messages, because the user is not allowed to examine the queue, the queue
	// does not answer, or its messages have not been counted yet. For several queues, this applies to at least one of
	// them.
	Unknown bool `json:"unknown,omitempty"`
}

func (c Count) plus(o Count) Count {
	return Count{c.Ready + o.Ready, sum(c.Leaving, o.Leaving), sum(c.Unacked, o.Unacked), c.Unknown || o.Unknown}
}

// Total returns the sum of the known counts.
func (c Count) Total() int64 { return c.Ready + known(c.Leaving) + known(c.Unacked) }

// InTransit returns the number of messages that are not ready; nil if unknown.
func (c Count) InTransit() *int64 { return sum(c.Leaving, c.Unacked) }

// Complete reports whether Total is the number of all messages.
func (c Count) Complete() bool { return !c.Unknown && c.InTransit() != nil }

// sum adds two counts. The sum is unknown if one of them is.
func sum(a, b *int64) *int64 {
	if a == nil || b == nil {
		return nil
	}
	return new(*a + *b)
}

// known returns a count, or 0 if it is unknown.
func known(n *int64) int64 {
	if n == nil {
		return 0
	}
	return *n
}

// Layout is a set of delay queues, or the plugin's exchange.
type Layout struct {
	Name string `json:"name"`
	// Earlier means that these queues are not in the configuration. They belong to an earlier layout or to another
	// process.
	Earlier bool  `json:"earlier"`
	Queues  int   `json:"queues"`
	Waiting Count `json:"waiting"`
	// Delays are the queues that are not empty, in ascending order of delay. It is empty for the native strategy, whose
	// queues hold each message until its own due time.
	Delays []Delay `json:"delays"`
}

// Drained reports whether the layout is known to have no waiting messages.
func (l Layout) Drained() bool { return l.Waiting.Complete() && l.Waiting.Total() == 0 }

// Delay is a delay queue.
type Delay struct {
	Queue string `json:"queue"`
	TTL   Span   `json:"ttl_ms"`
	// Latest is the maximum time from when a message enters the queue until it is due: the queue's TTL plus the TTLs of
	// the shorter queues that the message may still pass through.
	Latest  Span  `json:"latest_ms"`
	Waiting Count `json:"waiting"`

	place string // position in its layout
}

// Span is a duration that is a whole number of milliseconds in JSON.
type Span time.Duration

// MarshalJSON writes the number of milliseconds.
func (s Span) MarshalJSON() ([]byte, error) {
	return strconv.AppendInt(nil, time.Duration(s).Milliseconds(), 10), nil
}

// UnmarshalJSON reads a number of milliseconds.
func (s *Span) UnmarshalJSON(data []byte) error {
	ms, err := strconv.ParseInt(string(data), 10, 64)
	*s = Span(time.Duration(ms) * time.Millisecond)
	return err
}

// Due counts the messages and tasks that become due within a given time span.
type Due struct {
	Within Span `json:"within_ms"`
	// OnBroker is a lower bound. It counts the messages in queues from which every message departs in time. Other queues
	// may also contain messages for which little of a long delay remains. It is nil if unknown.
	OnBroker *int64 `json:"on_broker_at_least"`
	// Tasks counts the pending tasks of the database, whether or not they were sent to the broker; nil if unknown.
	Tasks *int64 `json:"tasks"`
}

// Destination is the state of a queue, or of an exchange with a routing key.
type Destination struct {
	Name string `json:"name"` // the queue, or exchange:routing-key
	// Queue is the destination's queue or, for an exchange, its route queue.
	Queue     string       `json:"queue"`
	Exchange  bool         `json:"exchange"`
	Exists    bool         `json:"exists"`
	Waiting   Count        `json:"waiting"`
	Consumers *int64       `json:"consumers"` // nil if unknown
	Dead      *DeadLetters `json:"dead"`      // nil without a dead-letter queue
}

// Unconsumed reports whether the queue is known to have no consumer.
func (d Destination) Unconsumed() bool {
	return !d.Exchange && d.Exists && d.Consumers != nil && *d.Consumers == 0
}

// DeadLetters is the content of a dead-letter queue or of the parked queue.
type DeadLetters struct {
	Queue    string `json:"queue"`
	Messages int64  `json:"messages"`
	// Unknown means that there may be more or fewer messages, because the queue could not be counted (see
	// Count.Unknown), or because the counts of the broker and the management API contradict each other.
	Unknown bool `json:"unknown,omitempty"`
	// Held is how many of the messages are not ready because a consumer, such as a requeue command, holds them. It is
	// nil if unknown.
	Held *int64 `json:"held"`
	// Sampled is how many messages, from the head of the queue, were examined and are in Groups.
	Sampled int     `json:"sampled"`
	Groups  []Group `json:"groups"`
	// Oldest is when the oldest of the examined messages arrived in the queue; nil if unknown.
	Oldest *time.Time `json:"oldest"`
}

// Group counts the messages that are in a queue for the same reason.
type Group struct {
	Destination string `json:"destination"` // where the messages belong; empty if unknown
	Reason      string `json:"reason"`      // empty for messages that are not dead letters
	Messages    int    `json:"messages"`
	Error       string `json:"error"` // the newest message's error; empty if unknown
}

// Client groups all connections with the same name.
type Client struct {
	Name        string `json:"name"`
	Connections int    `json:"connections"`
	Blocked     int    `json:"blocked"` // how many of them are blocked by an alarm
}

// Tasks is the state of the tasks in an application's database. Relays use the database's clock, so this clock
// determines whether a task is due and whether a relay runs.
type Tasks struct {
	// Skew is the database's clock minus this process's clock. It is 0 if the difference is at most a second.
	Skew Span `json:"clock_difference_ms"`

	Counts []TaskCount `json:"counts"`
	// Held are the destinations that are paused, have a rate limit, or are spreading tasks that came due during a pause.
	// Tasks that wait for one of these reasons do not count as overdue.
	Held []schedule.DestinationState `json:"held"`
	// Overdue is the oldest pending task that is due; nil if there is none.
	Overdue *Overdue `json:"oldest_overdue"`
	// Unsent counts tasks that have been due for 10 s and were never sent to the broker. Unhandled counts tasks that
	// were sent and have been due for 2 min. More means that not all of them were counted.
	Unsent    int64 `json:"unsent"`
	Unhandled int64 `json:"unhandled"`
	More      bool  `json:"more"`
	// Sent counts the tasks that were sent and are not due within a minute; nil if there are none.
	Sent *Sent `json:"sent"`
	// Idle are recurring tasks that currently create no tasks although they are not paused, sorted by name, with the
	// reason. It is nil if they could not be read.
	Idle []doctor.IdleRecurring `json:"idle_recurring"`
	// Unlisted lists the destinations of pending tasks that are not in the configuration, sorted by name. Relays with
	// this configuration refuse to send to them. It is nil if they could not be read.
	Unlisted []doctor.UnlistedTasks `json:"unlisted"`
	// Relays are the relays that run on the database or that died there within a week, most recently seen first; nil if
	// unknown.
	Relays []taskview.Relay `json:"relays"`

	late    doctor.Tasks
	due     []int64 // pending tasks due within each duration of dueWithin
	unheard error   // the reason why Relays is unknown
	read    time.Time
	took    time.Duration // how long reading the tasks took
}

// Clock returns the database's time at the given time of this process. Without tasks it returns the same time.
func (t *Tasks) Clock(at time.Time) time.Time {
	if t == nil {
		return at
	}
	return at.Add(time.Duration(t.Skew))
}

// Sent summarises the tasks that were sent and are not due yet. Each should have a message on the broker.
type Sent struct {
	Tasks int64 `json:"tasks"`
	More  bool  `json:"more"` // not all of them were counted
	// Missing is how many of them have certainly lost their messages; nil if unknown. More may have lost theirs.
	Missing *int64 `json:"missing_at_least"`
	// ResendFrom and ResendTo are when the relay sends the first and the last of the counted tasks again, if it finds
	// that their messages are lost.
	ResendFrom time.Time `json:"resend_from"`
	ResendTo   time.Time `json:"resend_to"`
}

// TaskCount is the number of a queue's tasks with a status. Queue is empty for tasks whose destination is an exchange.
type TaskCount struct {
	Queue  string          `json:"queue"`
	Status schedule.Status `json:"status"`
	Count  int64           `json:"count"`
}

// Overdue is a task that is due and has not been handled.
type Overdue struct {
	ID          string    `json:"id"`
	Destination string    `json:"destination"`
	Due         time.Time `json:"due"`
	Sent        bool      `json:"sent"` // whether it was sent to the broker
	Attempts    int       `json:"attempts"`
	LastError   string    `json:"last_error"`
}

package faults

import (
	"slices"
	"sync"
	"time"
)

// Outcome is what a producer was told about a message.
type Outcome int

// The outcomes of Send.
const (
	Acknowledged Outcome = iota // Send returned nil
	NotSent                     // amqpx.ErrNotSent
	Unknown                     // amqpx.ErrOutcomeUnknown
)

// Sent is a message as its producer knows it.
type Sent struct {
	ID      string
	Due     time.Time
	Outcome Outcome
	Began   time.Time // the call of Send
	Ended   time.Time // its return
}

// Effect is a row that a consumer committed for a message.
type Effect struct {
	ID string
	At time.Time // taken inside the transaction, before its commit
}

// Seen is one run of a handler.
type Seen struct {
	ID      string
	Attempt int
	Due     time.Time // of this attempt: a retry is due later than the message
	At      time.Time
}

// Ledger holds what was sent and what came of it. Producers add to it from many
// goroutines; effects and deliveries are added when the run is over.
type Ledger struct {
	mu   sync.Mutex
	sent []Sent

	Effects []Effect
	Seen    []Seen
}

// Record adds a message.
func (l *Ledger) Record(s Sent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sent = append(l.sent, s)
}

// Sent returns the messages so far.
func (l *Ledger) Sent() []Sent {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clip(l.sent)
}

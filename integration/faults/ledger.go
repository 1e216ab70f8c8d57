package faults

import (
	"slices"
	"sync"
	"time"
)

// Outcome is the result that a producer received for a message.
type Outcome int

// The results of Send.
const (
	Acknowledged Outcome = iota // Send returned nil
	NotSent                     // amqpx.ErrNotSent
	Unknown                     // amqpx.ErrOutcomeUnknown
)

// Sent is a message from its producer's point of view.
type Sent struct {
	ID      string
	Due     time.Time
	Outcome Outcome
	Began   time.Time // when Send was called
	Ended   time.Time // when Send returned
}

// Effect is a row that a consumer committed for a message.
type Effect struct {
	ID string
	At time.Time // taken inside the transaction, before its commit
}

// Seen is one handler run.
type Seen struct {
	ID      string
	Attempt int
	Due     time.Time // due time of this attempt; a retry is due later than the message
	At      time.Time
}

// Ledger records sent messages and their effects. Producers add to it concurrently, and effects and deliveries are
// added after the run.
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

// Sent returns the messages recorded so far.
func (l *Ledger) Sent() []Sent {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clip(l.sent)
}

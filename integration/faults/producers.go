package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
)

// producers send messages at a constant rate and record the results.
type producers struct {
	clients  []*amqpx.Client
	strategy Strategy
	ledger   *Ledger
	rate     float64 // messages per second

	calls chan struct{} // limits concurrent calls to Send

	mu     sync.Mutex
	failed error // an error that no fault explains
}

// maxCalls is more than the number of concurrent calls that result from the rate and the longest deadline.
const maxCalls = 8192

const (
	batchSize  = 10
	batchShare = 0.1 // share of the messages
)

// run sends messages until ctx ends, and returns when all calls have returned.
func (p *producers) run(ctx context.Context) error {
	p.calls = make(chan struct{}, maxCalls)
	var running sync.WaitGroup
	began := time.Now()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for sent := 0; ; {
		select {
		case <-ctx.Done():
			running.Wait()
			return p.failure()
		case <-ticker.C:
		}
		for due := int(time.Since(began).Seconds() * p.rate); sent < due; {
			n := 1
			if rand.Float64() < batchShare/batchSize {
				n = batchSize
			}
			sent += n
			p.calls <- struct{}{}
			running.Go(func() {
				defer func() { <-p.calls }()
				p.send(n)
			})
		}
	}
}

// send sends n messages in one call.
func (p *producers) send(n int) {
	// Do not use the run's context, so that every call gets its outcome.
	ctx, cancel := context.WithTimeout(context.Background(), time.Second+rand.N(9*time.Second))
	defer cancel()
	client := p.clients[rand.IntN(len(p.clients))]
	msgs, entries := make([]amqpx.Message, n), make([]Sent, n)
	for i := range msgs {
		msgs[i], entries[i] = p.message()
	}
	var err error
	if n == 1 {
		err = client.Send(ctx, msgs[0])
	} else {
		err = client.SendBatch(ctx, msgs)
	}
	var batch *amqpx.BatchError
	isBatch := errors.As(err, &batch)
	for i := range entries {
		one := err
		if isBatch {
			one = nil
			if f := batch.Failed[i]; f != nil {
				one = f
			}
		}
		entries[i].Ended = time.Now()
		switch {
		case one == nil:
			entries[i].Outcome = Acknowledged
		case errors.Is(one, amqpx.ErrOutcomeUnknown):
			entries[i].Outcome = Unknown
		default:
			entries[i].Outcome = NotSent
			if !errors.Is(one, amqpx.ErrNotSent) {
				p.fail(fmt.Errorf("got an error that is neither ErrNotSent nor ErrOutcomeUnknown: %w", one))
			}
		}
		p.ledger.Record(entries[i])
	}
}

func (p *producers) failure() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failed
}

func (p *producers) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failed == nil {
		p.failed = err
	}
}

// message generates a random message, to the queue or through the exchange, with a delay or a due time.
func (p *producers) message() (amqpx.Message, Sent) {
	delay := p.strategy.delay()
	m := amqpx.Message{ID: uuid.NewString(), Queue: destination, Delay: delay, Body: []byte(`{"order":42}`)}
	if rand.IntN(4) == 0 {
		m.Queue, m.Exchange, m.RoutingKey = "", events, eventKey
	}
	now := time.Now()
	s := Sent{ID: m.ID, Began: now, Due: now.Truncate(time.Millisecond).Add(delay)}
	if p.strategy.Name != "ttl" && rand.IntN(2) == 0 { // ttl does not support arbitrary due times
		m.Delay, m.DeliverAt = 0, s.Due
	}
	return m, s
}

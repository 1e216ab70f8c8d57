package sqldb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// Gather runs concurrent callers in one transaction, so that they share its round trips and its wait for the disk. No
// caller waits for others to arrive: callers that arrive while a transaction is running form the next one.
//
// A transaction that fails for any reason is rolled back, and each of its callers is run in a separate transaction. The
// failure of one caller therefore never affects another.
type Gather[T any] struct {
	db       DB
	opts     *sql.TxOptions
	most     int // maximum number of callers in one transaction
	together func(ctx context.Context, tx Tx, items []T) error

	mu      sync.Mutex
	waiting []*member[T]
	running int // number of running transactions
}

// These limit the number of concurrent transactions of one Gather. With two, one works while the other commits. With
// more, each transaction has fewer callers. In a measurement with client and database on two cores, more than two cost
// more than they saved, unless enough callers were waiting to fill another transaction.
const (
	lanes     = 2
	mostLanes = 4
)

// NewGather returns a Gather with at most the given number of callers per transaction. The parameter together is the
// function that processes the items of several callers in one transaction. Like the fn of Transact, it may be called
// more than once for the same items.
func NewGather[T any](db DB, opts *sql.TxOptions, most int, together func(ctx context.Context, tx Tx, items []T) error) *Gather[T] {
	return &Gather[T]{db: db, opts: opts, most: most, together: together}
}

// member is a caller of Do.
type member[T any] struct {
	ctx   context.Context
	item  T
	group []*member[T]  // the callers in the leader's transaction, beginning with the leader
	lead  chan struct{} // closed when group is set
	done  chan bool     // reports whether the member's transaction was committed
}

// Do processes the item in one transaction with other callers' items. If that is not possible or fails, Do calls
// alone(), which must process the item by itself, and returns its error. The transaction is cancelled when the context
// of one of its callers ends.
func (g *Gather[T]) Do(ctx context.Context, item T, alone func() error) error {
	m := &member[T]{ctx: ctx, item: item, lead: make(chan struct{}), done: make(chan bool, 1)}
	g.mu.Lock()
	g.waiting = append(g.waiting, m)
	if g.mayRun(g.running + 1) {
		g.running++
		g.appoint()
	}
	g.mu.Unlock()

	left := ctx.Done()
	for {
		select {
		case committed := <-m.done:
			if committed {
				return nil
			}
			return alone()
		case <-m.lead:
			if len(m.group) == 1 {
				return g.runAlone(alone)
			}
			if g.run(m.group) {
				return nil
			}
			return alone()
		case <-left:
			if g.leave(m) {
				return ctx.Err()
			}
			left = nil // too late to leave; ctx also cancels the transaction, whose end is signalled on done
		}
	}
}

// appoint makes the first waiting caller the leader of the next transaction. The caller holds the lock.
func (g *Gather[T]) appoint() {
	n := min(len(g.waiting), g.most)
	leader := g.waiting[0]
	leader.group = slices.Clone(g.waiting[:n])
	g.waiting = slices.Delete(g.waiting, 0, n)
	close(leader.lead)
}

// next starts another transaction after one has ended, if callers are waiting.
func (g *Gather[T]) next() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.mayRun(g.running) {
		g.appoint()
	} else {
		g.running--
	}
}

// mayRun reports whether the given number of transactions may run concurrently. Up to lanes may run if any caller is
// waiting for one, and up to mostLanes if the waiting callers fill one. The caller holds the lock.
func (g *Gather[T]) mayRun(running int) bool {
	switch n := len(g.waiting); {
	case running <= lanes:
		return n > 0
	case running <= mostLanes:
		return n >= g.most
	}
	return false
}

func (g *Gather[T]) leave(m *member[T]) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	i := slices.Index(g.waiting, m)
	if i >= 0 {
		g.waiting = slices.Delete(g.waiting, i, i+1)
	}
	return i >= 0
}

// runAlone runs a leader without followers.
func (g *Gather[T]) runAlone(alone func() error) error {
	defer g.next() // deferred, because alone() may panic
	return alone()
}

// run processes the group's items in one transaction, and reports whether it was committed.
func (g *Gather[T]) run(group []*member[T]) (committed bool) {
	defer func() {
		for _, m := range group[1:] {
			m.done <- committed
		}
		g.next()
	}()
	ctx, cancel := context.WithCancel(context.WithoutCancel(group[0].ctx))
	defer cancel()
	items := make([]T, len(group))
	stops := make([]func() bool, len(group))
	for i, m := range group {
		stops[i] = context.AfterFunc(m.ctx, cancel)
		items[i] = m.item
	}
	defer func() {
		for _, stop := range stops {
			stop()
		}
	}()
	return Transact(ctx, g.db, g.opts, func(tx Tx) error { return g.safely(ctx, tx, items) }) == nil
}

// safely calls g.together, and converts a panic or runtime.Goexit into an error. When the item that caused it is
// processed alone, the panic or the exit occurs again in its caller's own goroutine.
func (g *Gather[T]) safely(ctx context.Context, tx Tx, items []T) error {
	ended := make(chan error, 1)
	go func() {
		err := errors.New("the goroutine exited")
		defer func() {
			if r := recover(); r != nil {
				err = fmt.Errorf("panic: %v", r)
			}
			ended <- err
		}()
		err = g.together(ctx, tx, items)
	}()
	return <-ended
}

// ErrApart is returned by the function that NewGather received if the items cannot be processed in one transaction.
var ErrApart = errors.New("these items cannot share a transaction")

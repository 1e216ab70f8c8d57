package sqldb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// Gather runs callers that come at the same time in one transaction, so that
// they share its round trips and its wait for the disk. Nobody waits for company:
// while a transaction is on its way, those who arrive form the next one.
//
// A transaction that fails, for whatever reason, is undone, and each of its
// callers runs alone. So one caller's failure is never another's.
type Gather[T any] struct {
	db       DB
	opts     *sql.TxOptions
	most     int // callers in one transaction
	together func(ctx context.Context, tx Tx, items []T) error

	mu      sync.Mutex
	waiting []*member[T]
	running int // transactions on their way
}

// How many transactions of one Gather run at once: while one commits, another
// works. More than two have fewer callers each, and cost more than they saved
// where that was measured (two cores, client and database together), except when
// as many callers wait as one can have.
const (
	lanes     = 2
	mostLanes = 4
)

// NewGather makes a Gather whose transactions are of at most so many callers.
// together does the work of all items; it may run again, as fn of Transact.
func NewGather[T any](db DB, opts *sql.TxOptions, most int, together func(ctx context.Context, tx Tx, items []T) error) *Gather[T] {
	return &Gather[T]{db: db, opts: opts, most: most, together: together}
}

// member is a caller of Do.
type member[T any] struct {
	ctx   context.Context
	item  T
	group []*member[T]  // those that it leads, itself the first
	lead  chan struct{} // closed when it has a group
	done  chan bool     // whether the transaction in which it was was committed
}

// Do commits the item together with others, or else returns what alone returns.
// The transaction ends when the context of one of its callers ends.
func (g *Gather[T]) Do(ctx context.Context, item T, alone func() error) error {
	m := &member[T]{ctx: ctx, item: item, lead: make(chan struct{}), done: make(chan bool, 1)}
	g.mu.Lock()
	g.waiting = append(g.waiting, m)
	if g.may(g.running + 1) {
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
			left = nil // it is in a transaction, which ends now
		}
	}
}

// appoint makes the first who waits the leader of the next transaction. The
// caller holds the lock.
func (g *Gather[T]) appoint() {
	n := min(len(g.waiting), g.most)
	leader := g.waiting[0]
	leader.group = slices.Clone(g.waiting[:n])
	g.waiting = slices.Delete(g.waiting, 0, n)
	close(leader.lead)
}

// next passes a lane on.
func (g *Gather[T]) next() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.may(g.running) {
		g.appoint()
	} else {
		g.running--
	}
}

// may reports whether so many transactions may run, one of them with callers that
// wait now. The caller holds the lock.
func (g *Gather[T]) may(running int) bool {
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

// runAlone is for a leader without followers.
func (g *Gather[T]) runAlone(alone func() error) error {
	defer g.next() // also when alone panics
	return alone()
}

// run commits the group's items, and reports whether it did.
func (g *Gather[T]) run(group []*member[T]) (committed bool) {
	defer func() {
		// Also when the goroutine ends in between.
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

// safely turns a panic into an error: it happens again where it belongs, when
// its item runs alone.
func (g *Gather[T]) safely(ctx context.Context, tx Tx, items []T) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	return g.together(ctx, tx, items)
}

// ErrApart is for together to return when the items cannot go together.
var ErrApart = errors.New("each of these must run alone")

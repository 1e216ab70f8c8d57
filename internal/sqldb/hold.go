package sqldb

import (
	"context"
	"errors"
	"sync/atomic"
)

// ErrOneConnection is returned for a statement that would wait forever: a handler's function runs the statement outside
// of its transaction, although the transaction holds the only connection of the pool.
var ErrOneConnection = errors.New("the handler's transaction holds the only connection of its pool, so a statement outside of the transaction would wait for it forever; pass the transaction instead of schedule.NoTx, or allow the pool more connections")

// Hold records that a transaction holds a connection from a pool.
type Hold struct {
	pool  any
	ended atomic.Bool
}

// NewHold returns the Hold for a transaction that begins on a pool. The pool is compared by ==.
func NewHold(pool any) *Hold { return &Hold{pool: pool} }

// End records that the transaction has ended.
func (h *Hold) End() {
	if h != nil {
		h.ended.Store(true)
	}
}

// holder is a Tx that holds a connection from a pool.
type holder interface{ Held() *Hold }

type holding struct{}

// withHold returns a context for a function that runs in the transaction t, so that Free can find out that t holds a
// connection.
func withHold(ctx context.Context, t Tx) context.Context {
	if h, ok := t.(holder); ok && h.Held() != nil {
		return context.WithValue(ctx, holding{}, h.Held())
	}
	return ctx
}

// Free returns ErrOneConnection if ctx belongs to a function whose transaction holds the only connection of the pool.
// The parameter size returns the maximum number of the pool's connections, or 0 for no limit.
func Free(ctx context.Context, pool any, size func() int) error {
	h, _ := ctx.Value(holding{}).(*Hold)
	if h == nil || h.pool != pool || h.ended.Load() || size() != 1 {
		return nil
	}
	return ErrOneConnection
}

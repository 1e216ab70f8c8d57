package idempotency

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/outage"
	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
)

// Func is the effect of a message. Everything that it does with tx commits together with the record of the message, or
// not at all. It must return every error of tx, because the database may have aborted the transaction by then, and it
// must neither commit nor roll back. It may run again for the same delivery if the database rolled back the transaction
// because of another one (a deadlock, a serialization failure), so effects outside tx may happen more than once.
type Func func(ctx context.Context, tx *sql.Tx, d *amqpx.Delivery) error

// Errors that the handler returns. Use errors.Is to check for them.
var (
	// ErrKey means that the message has no id, or one that is unusable as a key. The message is dead-lettered, because
	// a repeated delivery of it could not be recognised.
	ErrKey = errors.New("a repeated delivery of this message could not be detected")
	// ErrIsTask means that the message belongs to a task for this queue. The task's row decides whether the effect is
	// still wanted, and is marked as done in the same transaction. The message is dead-lettered. Use schedule.Handler
	// to consume it.
	ErrIsTask = errors.New("the message belongs to a task")
	// ErrCommit means that the commit failed but may have happened anyway, for example because the connection was lost.
	// The message is retried, and the record decides whether the effect runs again.
	ErrCommit = sqldb.ErrCommit
	// ErrNoTable means that the table rabbitdelay_processed does not exist. Run Migrate.
	ErrNoTable = sqldb.ErrNoTable
)

// maxKey is the maximum length of a scope or message id in bytes, which is also AMQP's maximum.
const maxKey = 255

// Handler wraps fn for Client.Consume. For each message it opens a transaction, records the message id, runs fn and
// commits. If the id is already recorded, the effect is skipped and the message is acknowledged. If several consumers
// receive the same message concurrently, one of them commits. The others wait for it in the database and then skip the
// message, or take over if it failed.
//
// The handler returns the error of fn or of the database, and the message is then retried. While the database is
// unavailable, the handler waits for up to a minute, and then snoozes the message, which uses up no attempt. A message
// without a usable key is rejected with ErrKey, and the message of a task for this queue with ErrIsTask. A task for an
// exchange is handled like any other message, so that services without the tasks table can consume it. One of the
// exchange's queues needs schedule.Handler. If fn panics, the transaction is rolled back and the panic continues.
//
// Without fn, or with a nil database or option, Handler returns nil, which Consume reports as an error. For a pgx pool,
// use pgxtx.IdempotentHandler or service.IdempotentHandler, which adapts to the service's database.
//
// To test the handler, call it with a Delivery that has an ID and, unless a scope is set, a Queue.
func Handler(db Database, fn Func, opts ...HandlerOption) amqpx.Handler {
	if fn == nil || sqldb.IsNil(db) || slices.ContainsFunc(opts, func(o HandlerOption) bool { return o == nil }) {
		return nil
	}
	h := &handler{db: sqldb.Of(db), fn: fn, now: time.Now}
	for _, o := range opts {
		o(h)
	}
	h.dialect = sqldb.NewResolver(h.db, h.given)
	if h.group > 1 {
		h.gather = sqldb.NewGather(h.db, h.txOpts, h.group, h.together)
	}
	return h.handle
}

type handler struct {
	db      sqldb.DB
	fn      Func
	dialect *sqldb.Resolver
	now     func() time.Time

	given  sqldb.Dialect
	txOpts *sql.TxOptions
	scope  string
	key    func(*amqpx.Delivery) (string, error)
	group  int
	gather *sqldb.Gather[*piece] // nil if each message has its own transaction
	guards []func(context.Context, sqldb.Tx, *amqpx.Delivery) (bool, error)
	onSkip func(context.Context, *amqpx.Delivery, SkipReason)
}

func (h *handler) handle(ctx context.Context, d *amqpx.Delivery) error {
	if d.Version > 0 && d.Exchange == "" {
		return amqpx.Reject(fmt.Errorf("%w: %q; consume queue %s with schedule.Handler; otherwise the task stays pending and is sent again", ErrIsTask, d.ID, d.Queue))
	}
	scope, id, err := h.identify(d)
	if err != nil {
		return amqpx.Reject(err)
	}
	p := &piece{ctx: ctx, d: d, scope: scope, id: id}
	once := func(begun func()) error {
		return sqldb.Transact(ctx, h.db, h.txOpts, func(tx sqldb.Tx) error {
			p.skipped = ""
			// Insert the record in the transaction's first statement, for three reasons. A concurrent transaction with
			// the same id waits here for the outcome of this one, before fn has read anything. A deferred transaction
			// of SQLite takes its write lock here and does not have to upgrade a read lock, which can fail. And MySQL's
			// repeatable read takes its snapshot after the wait.
			n, err := h.insert(ctx, tx, []*piece{p})
			if err != nil {
				return fmt.Errorf("recording message %q: %w", id, sqldb.Explain(err))
			}
			if n != 1 {
				p.skipped = SkipDuplicate
				return nil
			}
			begun()
			return h.effect(tx, p)
		})
	}
	alone := func() error { return outage.Wait(ctx, sqldb.Unavailable, once) }
	if h.gather != nil {
		err = h.gather.Do(ctx, p, alone)
	} else {
		err = alone()
	}
	if _, ok := errors.AsType[*outage.Error](err); ok {
		return amqpx.Snooze(outage.SnoozeFor)
	}
	if err == nil && p.skipped != "" && h.onSkip != nil {
		h.onSkip(ctx, d, p.skipped)
	}
	return err
}

// piece is one message of a transaction, which is shared by several messages if they are grouped (WithGroup).
type piece struct {
	ctx       context.Context
	d         *amqpx.Delivery
	scope, id string
	skipped   SkipReason
}

// effect runs fn, unless a guard declines. In that case it records the message as guarded.
func (h *handler) effect(tx sqldb.Tx, p *piece) error {
	for _, guard := range h.guards {
		ok, err := guard(p.ctx, tx, p.d)
		if err != nil {
			return fmt.Errorf("guard: %w", err)
		}
		if !ok {
			p.skipped = SkipGuarded
			d, err := h.dialect.Resolve(p.ctx, tx)
			if err != nil {
				return err
			}
			_, err = tx.ExecContext(p.ctx, d.Bind("UPDATE rabbitdelay_processed SET outcome = 'guarded' WHERE scope = ? AND message_id = ?"), p.scope, p.id)
			return err
		}
	}
	ctx, own := sqldb.Hand(p.ctx, tx)
	return h.fn(ctx, own, p.d)
}

// together records several messages in one statement and runs their effects. It returns sqldb.ErrApart unless all of
// the messages are new.
func (h *handler) together(ctx context.Context, tx sqldb.Tx, pieces []*piece) error {
	// Sort the records, so that groups with common messages insert them in the same order and do not deadlock.
	sorted := slices.SortedFunc(slices.Values(pieces), func(a, b *piece) int {
		return cmp.Or(cmp.Compare(a.scope, b.scope), cmp.Compare(a.id, b.id))
	})
	n, err := h.insert(ctx, tx, sorted)
	if err != nil {
		return err
	}
	if n != int64(len(pieces)) {
		return sqldb.ErrApart
	}
	for _, p := range pieces {
		p.skipped = ""
		if err := sqldb.Lend(ctx, tx, func(lent sqldb.Tx) error { return h.effect(lent, p) }); err != nil {
			return err
		}
	}
	return nil
}

func (h *handler) identify(d *amqpx.Delivery) (scope, id string, err error) {
	scope, id = h.scope, d.ID
	if scope == "" {
		scope = d.Queue
	}
	if h.key != nil {
		if id, err = h.key(d); err != nil {
			return "", "", fmt.Errorf("%w: %w", ErrKey, err)
		}
	}
	switch {
	case id == "":
		return "", "", fmt.Errorf("%w: the message has no id; set one when publishing (Delivery.ID in a test), or set another key with WithKey", ErrKey)
	case len(id) > maxKey:
		return "", "", fmt.Errorf("%w: the message's key is %d bytes long; expected at most %d; use a hash of the key", ErrKey, len(id), maxKey)
	case !utf8.ValidString(id) || strings.ContainsRune(id, 0):
		return "", "", fmt.Errorf("%w: the message's key %q cannot be stored by every database; expected UTF-8 without NUL characters", ErrKey, id)
	}
	return scope, id, nil
}

// insert records messages and returns how many of them were new.
func (h *handler) insert(ctx context.Context, tx sqldb.Tx, pieces []*piece) (int64, error) {
	const (
		into        = "INTO rabbitdelay_processed (scope, message_id, outcome, processed_at) "
		row         = "(?, ?, 'done', ?)"
		unlessThere = " ON CONFLICT (scope, message_id) DO NOTHING"
	)
	d, err := h.dialect.Resolve(ctx, tx)
	if err != nil {
		return 0, err
	}
	now := h.now().UnixMilli()
	query, args := "INSERT "+into, []any{}
	if d == sqldb.PostgreSQL && len(pieces) > 1 {
		type record struct {
			Scope string `json:"scope"`
			ID    string `json:"id"`
		}
		records := make([]record, len(pieces))
		for i, p := range pieces {
			records[i] = record{p.scope, p.id}
		}
		list, err := json.Marshal(records)
		if err != nil {
			return 0, err
		}
		query += "SELECT scope, id, 'done', CAST(? AS bigint) FROM json_to_recordset(" + sqldb.JSON + ") AS message (scope text, id text)" + unlessThere
		args = append(args, now, string(list))
	} else {
		values := "VALUES " + row + strings.Repeat(", "+row, len(pieces)-1)
		if query += values + unlessThere; d == sqldb.MySQL {
			query = "INSERT IGNORE " + into + values // IGNORE hides no invalid values, because identify has checked them
		}
		for _, p := range pieces {
			args = append(args, p.scope, p.id, now)
		}
	}
	res, err := tx.ExecContext(ctx, d.Bind(query), args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

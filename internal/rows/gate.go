package rows

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
)

// MaxWaiting is the largest number of waiting tasks that is counted for a destination that is paused or rate-limited.
const MaxWaiting = 100_000

// Gate is a row in rabbitdelay_destinations: the pause and the rate limits of a lane.
type Gate struct {
	Lane

	PausedAt time.Time // zero if the lane is not paused
	PausedBy string

	PerSecond float64 // the rate limit; 0 for none
	Burst     int
	Free      int64 // when the next task may be sent at that rate, in nanoseconds since the epoch

	// Tasks that became due during a pause, up to SpreadDue, are sent at SpreadRate (tasks per second) until
	// SpreadUntil.
	SpreadDue, SpreadUntil time.Time
	SpreadRate             float64
	SpreadFree             int64 // when the next task may be sent at SpreadRate, like Free

	// FileWrote reports whether a configuration has ever set a rate limit. FilePerSecond and FileBurst are the rate
	// limit that a configuration set last. Changing the rate limit by hand does not change them.
	FileWrote     bool
	FilePerSecond float64
	FileBurst     int
}

// Paused reports whether the lane is paused.
func (g *Gate) Paused() bool { return !g.PausedAt.IsZero() }

// Spreads reports whether tasks that became due during a pause are still being spread over time.
func (g *Gate) Spreads(now time.Time) bool { return g.SpreadRate > 0 && now.Before(g.SpreadUntil) }

const (
	gateColumns = "queue, exchange, paused_at, paused_by, per_second, burst, free_at, spread_due, spread_until, spread_rate, spread_free, file_per_second, file_burst"
	ofLane      = " WHERE queue = ? AND exchange = ?"
)

// Gates reads all gates, including lanes that are no longer paused or limited.
func (c Conn) Gates(ctx context.Context) ([]*Gate, error) {
	return c.gates(ctx, "SELECT "+gateColumns+" FROM rabbitdelay_destinations ORDER BY queue, exchange")
}

// LockGates locks and reads the gates of the given lanes. The result does not contain gates that another session has
// locked.
func (c Conn) LockGates(ctx context.Context, lanes []Lane) (map[Lane]*Gate, error) {
	const one = "(queue = ? AND exchange = ?)"
	args := make([]any, 0, 2*len(lanes))
	for _, l := range lanes {
		args = append(args, l.Queue, l.Exchange)
	}
	list, err := c.gates(ctx, "SELECT "+gateColumns+" FROM rabbitdelay_destinations WHERE "+one+strings.Repeat(" OR "+one, len(lanes)-1)+c.lock(SkipLocked), args...)
	by := make(map[Lane]*Gate, len(list))
	for _, g := range list {
		by[g.Lane] = g
	}
	return by, err
}

// LongestClaim is the maximum time for which the server lets a claim of lanes with a rate limit be idle between two
// statements. After that the server terminates the session, because a hung relay would keep all other relays from
// claiming those lanes.
const LongestClaim = 10 * time.Second

// BoundClaim limits how long the session may be idle to LongestClaim, until the transaction ends. On PostgreSQL it does
// not replace a limit that the session already has. On MySQL and MariaDB it does not replace a shorter one, and the
// limit belongs to the session and not to the transaction, so the caller must call UnboundClaim before it commits.
// SQLite needs no limit, because its locks end with the process, and a process that hangs stops all writers anyway.
func (c Conn) BoundClaim(ctx context.Context) (err error) {
	switch {
	case c.postgres():
		const idle = "idle_in_transaction_session_timeout"
		_, err = c.exec(ctx, "SELECT set_config('"+idle+"', ?, true) WHERE current_setting('"+idle+"') = '0'", fmt.Sprint(LongestClaim.Milliseconds()))
	case c.mysql():
		_, err = c.exec(ctx, fmt.Sprintf("SET @rabbitdelay_wait_timeout = @@SESSION.wait_timeout, SESSION wait_timeout = CAST(LEAST(@@SESSION.wait_timeout, %d) AS unsigned)", int(LongestClaim.Seconds())))
	}
	return err
}

// UnboundClaim restores the session's limit that BoundClaim has changed.
func (c Conn) UnboundClaim(ctx context.Context) error {
	if !c.mysql() {
		return nil
	}
	_, err := c.exec(ctx, "SET SESSION wait_timeout = @rabbitdelay_wait_timeout")
	return err
}

// GateHolder describes the session that has locked the gate of a lane. MySQL and MariaDB do not show which session has
// locked a row for which no other session waits, so GateHolder returns the statement that lists the candidates. It
// returns "" on SQLite, and if PostgreSQL shows no such session.
func (c Conn) GateHolder(ctx context.Context, l Lane) (string, error) {
	switch {
	case c.mysql():
		return "SELECT trx_mysql_thread_id, trx_started FROM information_schema.innodb_trx ORDER BY trx_started lists all transactions, beginning with the oldest (it needs the privilege PROCESS); KILL with a trx_mysql_thread_id ends one", nil
	case !c.postgres():
		return "", nil
	}
	var pid, seconds int64
	var name, address, state string
	err := c.one(ctx, "SELECT a.pid, COALESCE(a.application_name, ''), COALESCE(CAST(a.client_addr AS text), ''), COALESCE(a.state, ''), CAST(extract(epoch FROM clock_timestamp() - a.xact_start) AS bigint)"+
		" FROM rabbitdelay_destinations AS d JOIN pg_stat_activity AS a ON a.backend_xid = d.xmax WHERE d.queue = ? AND d.exchange = ? AND a.xact_start IS NOT NULL",
		[]any{l.Queue, l.Exchange}, &pid, &name, &address, &state, &seconds)
	if errors.Is(err, sql.ErrNoRows) {
		return "", nil
	}
	return fmt.Sprintf("session %d (application %q, address %q) is %s, in a transaction of %d s; SELECT pg_terminate_backend(%d) ends it", pid, name, address, state, seconds, pid), err
}

func (c Conn) gates(ctx context.Context, query string, args ...any) (list []*Gate, err error) {
	err = c.each(ctx, query, args, func(scan scanner) error {
		g := &Gate{}
		var paused sql.NullInt64
		var due, until int64
		var file sql.NullFloat64
		err := scan(&g.Queue, &g.Exchange, &paused, &g.PausedBy, &g.PerSecond, &g.Burst, &g.Free, &due, &until, &g.SpreadRate, &g.SpreadFree, &file, &g.FileBurst)
		g.FileWrote, g.FilePerSecond = file.Valid, file.Float64
		g.PausedAt, g.SpreadDue, g.SpreadUntil = orZero(paused), orNever(due), orNever(until)
		list = append(list, g)
		return err
	})
	return list, err
}

// LockGate locks and reads the gate of a lane. It inserts the row if there is none.
func (c Conn) LockGate(ctx context.Context, l Lane) (*Gate, error) {
	if _, err := c.exec(ctx, c.insertMissing("rabbitdelay_destinations (queue, exchange) VALUES (?, ?)"), l.Queue, l.Exchange); err != nil {
		return nil, err
	}
	list, err := c.gates(ctx, "SELECT "+gateColumns+" FROM rabbitdelay_destinations"+ofLane+c.lock(Exclusive), l.Queue, l.Exchange)
	if err != nil {
		return nil, err
	}
	if len(list) == 0 {
		return nil, sql.ErrNoRows
	}
	return list[0], nil
}

// WriteGate writes a gate whose row is locked.
func (c Conn) WriteGate(ctx context.Context, g *Gate) error {
	_, err := c.exec(ctx, "UPDATE rabbitdelay_destinations SET paused_at = ?, paused_by = ?, per_second = ?, burst = ?, free_at = ?, spread_due = ?, spread_until = ?, spread_rate = ?, spread_free = ?, file_per_second = ?, file_burst = ?"+ofLane,
		orNull(g.PausedAt), g.PausedBy, g.PerSecond, g.Burst, g.Free, zeroOr(g.SpreadDue), zeroOr(g.SpreadUntil), g.SpreadRate, g.SpreadFree, sql.NullFloat64{Float64: g.FilePerSecond, Valid: g.FileWrote}, g.FileBurst, g.Queue, g.Exchange)
	return err
}

// SpendGate writes a gate's Free and SpreadFree, which a claim has moved forward. The row must be locked.
func (c Conn) SpendGate(ctx context.Context, g *Gate) error {
	_, err := c.exec(ctx, "UPDATE rabbitdelay_destinations SET free_at = ?, spread_free = ?"+ofLane, g.Free, g.SpreadFree, g.Queue, g.Exchange)
	return err
}

// TransactRecall calls the function do, which calls Recall, in a transaction. MySQL and MariaDB have no lock that
// several handlers can share without deadlocks. On these databases, the transaction reads uncommitted changes: if the
// effect of a pending task is recorded, its handler has not committed yet. If a handler records its effect after Recall
// has looked for it but before Recall commits, the handler finds a new version when it ends, and is rolled back.
func (db *DB) TransactRecall(ctx context.Context, do func(Conn) error) error {
	c, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	opts := c.readCommitted()
	if c.mysql() {
		opts = &sql.TxOptions{Isolation: sql.LevelReadUncommitted}
	}
	return db.transact(ctx, db.DB, opts, do)
}

// Recall recalls tasks of a lane whose messages are on the broker and whose resend_at is no later than until. It
// recalls at most the given number of tasks, those with the earliest resend_at. Each task gets a new version, so that
// its message has no effect, and becomes unsent. Recall skips tasks whose rows are locked, for example by a handler, and
// on MySQL and MariaDB also tasks whose effect a handler has recorded. It returns the number of recalled tasks. It must
// be called in a transaction of TransactRecall.
func (c Conn) Recall(ctx context.Context, l Lane, until int64, most int, now int64) (int64, error) {
	if err := c.WriteFirst(ctx); err != nil {
		return 0, err
	}
	idle := ""
	if c.mysql() && l.Exchange != "" {
		idle = " AND NOT EXISTS (SELECT 1 FROM rabbitdelay_effects AS e WHERE e.task_id = id AND e.created_at = rabbitdelay_tasks.created_at AND e.version = rabbitdelay_tasks.version AND e.done_at IS NOT NULL)"
	}
	ids, err := c.texts(ctx, "SELECT id FROM "+c.from(ToResend)+" AND queue = ? AND exchange = ? AND resend_at <= ?"+idle+" ORDER BY resend_at LIMIT ?"+c.lock(SkipLocked), l.Queue, l.Exchange, until, most)
	if err != nil || len(ids) == 0 {
		return 0, err
	}
	return c.exec(ctx, "UPDATE rabbitdelay_tasks SET version = version + 1, sent_at = NULL, sends = 0, send_failures = 0, resend_at = NULL, claimed_until = 0, updated_at = ? WHERE "+
		stillPending+" AND id IN ("+marks(len(ids))+")", append([]any{now}, anys(ids)...)...)
}

// zeroOr returns the column value of a time, which is 0 for the zero time.
func zeroOr(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return Stored(t)
}

// PendingLanes returns the lanes that have pending tasks.
func (c Conn) PendingLanes(ctx context.Context) ([]Lane, error) {
	var list []Lane
	seen := map[Lane]bool{}
	for _, p := range []Purpose{ToSend, ToResend} {
		found, err := c.Lanes(ctx, p, math.MaxInt64)
		if err != nil {
			return nil, err
		}
		for _, w := range found {
			if !seen[w.Lane] {
				seen[w.Lane] = true
				list = append(list, w.Lane)
			}
		}
	}
	return list, nil
}

// pendingOf returns the FROM and WHERE clauses for the pending tasks of a lane that are due. An index contains these
// tasks in order. If sent is true, the clauses match only tasks that were sent.
func (c Conn) pendingOf(l Lane, sent bool) string {
	condition := ""
	if sent {
		condition = " AND resend_at IS NOT NULL"
	}
	return " FROM " + c.byDestination(l.Exchange, "queue") + " WHERE queue = ? AND exchange = ? AND status = 'pending' AND due_at <= ?" + condition
}

// OldestOf returns the earliest due time of the pending tasks of a lane that are due, or zero if none is due. If sent
// is true, it considers only tasks that were sent.
func (c Conn) OldestOf(ctx context.Context, l Lane, sent bool, now int64) (time.Time, error) {
	return c.oldest(ctx, c.pendingOf(l, sent), l.Queue, l.Exchange, now)
}

// CountDue counts the pending tasks of a lane that are due, up to limit.
func (c Conn) CountDue(ctx context.Context, l Lane, now, limit int64) (int64, error) {
	return c.number(ctx, "SELECT COUNT(*) FROM (SELECT 1"+c.pendingOf(l, false)+" ORDER BY due_at LIMIT ?) AS counted", l.Queue, l.Exchange, now, limit)
}

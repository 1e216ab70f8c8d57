package schedule

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
)

func (t target) String() string {
	if t.exchange == "" {
		return "queue " + t.queue
	}
	return fmt.Sprintf("exchange %s with routing key %q", t.exchange, t.key)
}

// QueueInspector is what a Sender may be besides, for the sweeper to tell a queue
// whose messages are waiting from one whose messages are lost. *amqpx.Client is
// one. Without it the sweeper sends little again where consumers have stopped.
type QueueInspector interface {
	QueueInfo(ctx context.Context, queue string) (amqpx.QueueInfo, error)
}

var _ QueueInspector = (*amqpx.Client)(nil)

// sweepers is how many destinations are swept at once, so that one that does not
// answer, or does not confirm, keeps few from theirs.
const sweepers = 8

// sweep sends overdue tasks again, of each destination what the evidence allows.
func (s *Store) sweep(ctx context.Context) error {
	now := s.now().UnixMilli()
	lanes, err := s.look(ctx, toResend, s.pace.horizon(now))
	if err != nil {
		return err
	}
	lanes, next := divide(lanes, now)
	if len(lanes) > 0 {
		next = now
	}
	s.overdueAt.set(next)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	note := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		errs = append(errs, err)
	}
	slots := make(chan struct{}, sweepers)
	for _, w := range lanes {
		found, err := s.overdue(ctx, w, now)
		note(err)
		for _, t := range found {
			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				note(s.sweepTarget(ctx, t))
			})
		}
	}
	wg.Wait()
	s.forgetWindows(now)
	return errors.Join(errs...)
}

// overdue are the destinations of a lane with tasks whose resend_at has passed,
// and what the table tells of their consumers.
func (s *Store) overdue(ctx context.Context, w waiting, now int64) ([]suspicion, error) {
	d, err := s.dialect.Resolve(ctx, s.db)
	if err != nil {
		return nil, err
	}
	firsts := map[string]int64{"": w.first}
	if w.exchange != "" {
		if firsts, err = s.firstOverdue(ctx, d, w.lane, now); err != nil {
			return nil, err
		}
	}
	passages, err := s.passages(ctx, d, w.lane, now)
	if err != nil {
		return nil, err
	}
	list := make([]suspicion, 0, len(firsts))
	for key, first := range firsts {
		list = append(list, suspicion{target{w.queue, w.exchange, key}, evidence{
			now: now, grace: s.cfg.Grace.Milliseconds(), first: first, passage: passages[key], ready: undecided,
		}})
	}
	return list, nil
}

// suspicion is a destination some of whose messages may be lost.
type suspicion struct {
	target
	evidence
}

// firstOverdue is the earliest resend_at that has passed, by routing key.
func (s *Store) firstOverdue(ctx context.Context, d Dialect, l lane, now int64) (map[string]int64, error) {
	rows, err := s.db.QueryContext(ctx, d.Bind("SELECT routing_key, MIN(resend_at) FROM "+toResend.table(d)+" WHERE "+toResend.rows()+
		" AND queue = ? AND exchange = ? AND resend_at <= ? GROUP BY routing_key"), l.queue, l.exchange, now)
	if err != nil {
		return nil, fmt.Errorf("looking for overdue tasks: %w", err)
	}
	defer func() { _ = rows.Close() }()
	firsts := map[string]int64{}
	for rows.Next() {
		var key string
		var first int64
		if err := rows.Scan(&key, &first); err != nil {
			return nil, fmt.Errorf("looking for overdue tasks: %w", err)
		}
		firsts[key] = first
	}
	return firsts, rows.Err()
}

// recent is how many of the done tasks of a lane are looked at, those that were due
// last. It is more than one because an exchange has routing keys, each with
// consumers of its own, and because tasks may be due at the same instant.
const recent = 200

// byDestination is the table with the index of a destination. Without statistics the
// index of the status would do as well for an ORDER BY due_at, and have a seldom used
// destination's tasks far apart.
func byDestination(d Dialect, exchange string) string {
	switch {
	case d == MySQL && exchange != "":
		return "rabbitdelay_tasks FORCE INDEX (rabbitdelay_tasks_exchange)"
	case d == MySQL:
		return "rabbitdelay_tasks FORCE INDEX (rabbitdelay_tasks_queue)"
	case d == SQLite:
		return "rabbitdelay_tasks INDEXED BY rabbitdelay_tasks_queue"
	}
	return "rabbitdelay_tasks"
}

// passages tells how far consumers have come, by routing key. A key of which there
// is none among the recent tasks is missing.
func (s *Store) passages(ctx context.Context, d Dialect, l lane, now int64) (map[string]passage, error) {
	rows, err := s.db.QueryContext(ctx, d.Bind("SELECT routing_key, due_at, finished_at, sends, sent_at FROM "+byDestination(d, l.exchange)+
		" WHERE queue = ? AND exchange = ? AND status = 'done' AND due_at <= ? ORDER BY due_at DESC LIMIT ?"), l.queue, l.exchange, now, recent)
	if err != nil {
		return nil, fmt.Errorf("looking how far consumers have come: %w", err)
	}
	defer func() { _ = rows.Close() }()
	all := map[string]passage{}
	for rows.Next() {
		var key string
		var due int64
		var finished, sent sql.NullInt64
		var sends int
		if err := rows.Scan(&key, &due, &finished, &sends, &sent); err != nil {
			return nil, fmt.Errorf("looking how far consumers have come: %w", err)
		}
		p := all[key]
		p.reached = max(p.reached, due)
		if sends <= 1 {
			p.reached, p.lively = max(p.reached, sent.Int64), max(p.lively, finished.Int64)
		}
		all[key] = p
	}
	return all, rows.Err()
}

// sweepTarget sends again what may be of one destination.
func (s *Store) sweepTarget(ctx context.Context, x suspicion) error {
	g, ask := x.ground()
	var info amqpx.QueueInfo
	if ask {
		var err error
		if x.ready, info, err = s.depth(ctx, x.target); err != nil {
			return err
		}
		g, _ = x.ground()
	}
	w := s.window(x.target)
	switch g {
	case noGround:
		if x.ready > 0 && w.tell(x.now) {
			s.log.Warn("overdue tasks wait in their queue, and consumers do not come forward; they are not sent again",
				zap.Stringer("destination", x.target), zap.Int("ready", info.Ready), zap.Int("consumers", info.Consumers))
		}
		return nil
	case passedBy:
		_, err := s.resend(ctx, x, g, math.MaxInt)
		return err
	}
	unsettled, err := s.unsettled(ctx, w.out)
	if err != nil {
		return err
	}
	if w.failing(x.now, x.grace, unsettled) && w.tell(x.now) {
		s.log.Warn("tasks were sent again, and no handler settles them; does their consumer run, and is it wrapped in schedule.Handler?",
			zap.Stringer("destination", x.target), zap.Int("tasks", unsettled))
	}
	tried, err := s.resend(ctx, x, g, w.room(g, x.now, x.grace, unsettled))
	w.note(ids(tried), x.now)
	return err
}

// resend sends up to room tasks of a destination again, batch after batch.
func (s *Store) resend(ctx context.Context, x suspicion, g ground, room int) (tried []*claimed, err error) {
	total := 0
	defer func() {
		if total > 0 {
			s.log.Info("overdue tasks sent again", zap.Int("tasks", total), zap.Stringer("destination", x.target), zap.String("because", string(g)))
		}
	}()
	for room > 0 && err == nil && ctx.Err() == nil {
		most := min(room, s.health.room(x.target, s.now()))
		if most == 0 {
			break // it is in trouble
		}
		list, claimErr := s.claim(ctx, toResend, []wish{x.wish(g, most, s.cfg.MaxSends)})
		if claimErr != nil || len(list) == 0 {
			return tried, claimErr
		}
		rest, failErr := s.giveUp(ctx, x.target, list)
		sent, sendErr := s.launch(context.WithoutCancel(ctx), toResend, rest)
		total, tried, err = total+sent, append(tried, rest...), errors.Join(failErr, sendErr)
		if room -= len(list); sent < len(rest) {
			break // the broker does not take them
		}
	}
	return tried, err
}

// wish is what may be claimed. Where nothing shows that messages are lost, tasks
// are not to fail for having been sent often.
func (x suspicion) wish(g ground, most, maxSends int) wish {
	w := wish{lane: lane{x.queue, x.exchange}, until: x.until(g), most: most, narrow: " AND routing_key = ?", args: []any{x.key}}
	if g == allQuiet {
		w.narrow, w.args = w.narrow+" AND sends < ?", append(w.args, maxSends)
	}
	return w
}

// giveUp fails the tasks that were sent as often as they may be, and returns the
// others.
func (s *Store) giveUp(ctx context.Context, t target, list []*claimed) (rest []*claimed, err error) {
	failures := map[*claimed]error{}
	for _, c := range list {
		if c.Sends < s.cfg.MaxSends {
			rest = append(rest, c)
			continue
		}
		failures[c] = fmt.Errorf("%w, which was sent as often as MaxSends allows; look whether the consumer of %s is wrapped in schedule.Handler, then revive the task", ErrMaxSends, t)
		if c.LastError != "" {
			failures[c] = fmt.Errorf("%w; before that: %s", failures[c], c.LastError)
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), markTimeout)
	defer cancel()
	return rest, s.settleFailures(ctx, failures)
}

// depthTimeout bounds the look at a queue.
const depthTimeout = 5 * time.Second

// depth asks the broker for the number of ready messages.
func (s *Store) depth(ctx context.Context, t target) (ready int, info amqpx.QueueInfo, err error) {
	inspector, ok := s.sender.(QueueInspector)
	if !ok || t.queue == "" {
		return unknownDepth, info, nil
	}
	ctx, cancel := context.WithTimeout(ctx, depthTimeout)
	defer cancel()
	info, err = inspector.QueueInfo(ctx, t.queue)
	if err == nil {
		return info.Ready, info, nil
	}
	if ae, ok := errors.AsType[*amqp.Error](err); ok {
		switch ae.Code {
		case amqp.NotFound:
			return 0, info, nil
		case amqp.AccessRefused, amqp.ResourceLocked:
			return unknownDepth, info, nil
		}
	}
	return unknownDepth, info, err
}

// unsettled counts those of the tasks that are still pending as they were sent
// again. One that its handler has replaced was sent once at most.
func (s *Store) unsettled(ctx context.Context, which []any) (n int, err error) {
	if len(which) == 0 {
		return 0, nil
	}
	d, err := s.dialect.Resolve(ctx, s.db)
	if err != nil {
		return 0, err
	}
	err = s.db.QueryRowContext(ctx, d.Bind("SELECT COUNT(*) FROM rabbitdelay_tasks WHERE "+stillPending+" AND sends > 1 AND id IN ("+marks(len(which))+")"), which...).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("counting tasks that were sent again: %w", sqldb.Explain(err))
	}
	return n, nil
}

// window is that of a destination, as the last sweep left it.
func (s *Store) window(t target) *window {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.windows[t]
	if w == nil {
		w = &window{}
		s.windows[t] = w
	}
	w.used = s.now().UnixMilli()
	return w
}

// forgetWindows drops the windows of destinations that have had nothing overdue
// for some time.
func (s *Store) forgetWindows(now int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for t, w := range s.windows {
		if w.used+2*s.cfg.Grace.Milliseconds() < now {
			delete(s.windows, t)
		}
	}
}

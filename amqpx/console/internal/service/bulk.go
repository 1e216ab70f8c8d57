package service

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/shown"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Kinds of BulkAction.
const (
	BulkCancel = "cancel"
	BulkDelete = "delete"
	BulkFire   = "fire"
	BulkRevive = "revive"
	BulkMoveTo = "move-to"
	BulkMoveBy = "move-by"
)

// breath is the pause between two batches of a job, for those who wait for an answer.
const breath = 20 * time.Millisecond

type bulkRequest struct {
	Filter schedule.Filter `json:"filter"`
	Action BulkAction      `json:"action"`
	Count  int64           `json:"count"`
}

// action is what schedule does for a BulkAction.
func (a BulkAction) action() (schedule.BulkAction, error) {
	switch {
	case a.Kind != BulkMoveBy && a.By != 0:
		return schedule.BulkAction{}, &FieldError{"by", "is for move-by"}
	case a.Kind == BulkMoveBy && a.By == 0:
		return schedule.BulkAction{}, &FieldError{"by", "expected a duration other than 0, such as 2h or -1d"}
	case a.Kind != BulkMoveTo && a.Kind != BulkRevive && !a.At.IsZero():
		return schedule.BulkAction{}, &FieldError{"at", "is for move-to and revive"}
	case a.Kind == BulkMoveTo && a.At.IsZero():
		return schedule.BulkAction{}, &FieldError{"at", "expected an instant"}
	}
	switch a.Kind {
	case BulkCancel:
		return schedule.BulkCancel(), nil
	case BulkDelete:
		return schedule.BulkDelete(), nil
	case BulkFire:
		return schedule.BulkFire(), nil
	case BulkRevive:
		if a.At.IsZero() {
			a.At = time.Now()
		}
		return schedule.BulkRevive(a.At), nil
	case BulkMoveTo:
		return schedule.BulkMoveTo(a.At), nil
	case BulkMoveBy:
		return schedule.BulkMoveBy(a.By), nil
	}
	return schedule.BulkAction{}, &FieldError{"action", fmt.Sprintf("%q; expected cancel, delete, fire, revive, move-to or move-by", a.Kind)}
}

// String is the action in the audit.
func (a BulkAction) String() string {
	text := a.Kind
	if !a.At.IsZero() {
		text += " " + shown.Instant(a.At)
	}
	if a.By != 0 {
		sign := ""
		if a.By < 0 {
			sign = "-"
		}
		text += " " + sign + topology.FormatDuration(a.By.Abs())
	}
	if a.Spread > 0 {
		text += " over " + topology.FormatDuration(a.Spread)
	}
	return text
}

// header describes a condition on a header.
func header(name, value string, values bool) string {
	if name == "" || !values {
		return name
	}
	return name + "=" + strconv.Quote(value)
}

// describe describes a filter to people, with values of headers if they may see them.
func describe(f schedule.Filter, values bool) string {
	var parts []string
	for _, p := range []struct{ name, value string }{
		{"queue", f.Queue}, {"exchange", f.Exchange}, {"status", string(f.Status)}, {"id-prefix", f.IDPrefix}, {"tag", f.Tag}, {"header", header(f.Header, f.HeaderValue, values)},
	} {
		if p.value != "" {
			parts = append(parts, p.name+"="+p.value)
		}
	}
	if !f.DueFrom.IsZero() {
		parts = append(parts, "due-from="+shown.Instant(f.DueFrom))
	}
	if !f.DueTo.IsZero() {
		parts = append(parts, "due-to="+shown.Instant(f.DueTo))
	}
	if len(parts) == 0 {
		return "all"
	}
	return strings.Join(parts, " ")
}

// BulkCount is a method of Tasks.
func (c *Core) BulkCount(ctx context.Context, f schedule.Filter, a BulkAction) (int64, error) {
	s, err := c.store()
	if err != nil {
		return 0, err
	}
	act, err := a.action()
	if err != nil {
		return 0, err
	}
	f.Limit, f.After, f.WithoutBody = 0, schedule.Cursor{}, false
	ctx, cancel, err := c.bounded(ctx)
	defer cancel()
	if err != nil {
		return 0, err
	}
	n, err := s.BulkCount(ctx, f, act, schedule.BulkOptions{Spread: a.Spread})
	return n, slow(ctx, err)
}

// Bulk is a method of Tasks.
func (c *Core) Bulk(ctx context.Context, who Identity, f schedule.Filter, a BulkAction, count int64) (Job, error) {
	if count < 1 {
		return Job{}, &FieldError{"count", fmt.Sprintf("%d; expected how many tasks may be changed, 1 or more: what a dry run has counted", count)}
	}
	f.Limit, f.After, f.WithoutBody = 0, schedule.Cursor{}, false
	if a.Kind == BulkRevive && a.At.IsZero() {
		a.At = time.Now()
	}
	s, err := c.store()
	if err != nil {
		return Job{}, err
	}
	act, err := a.action()
	if err != nil {
		return Job{}, err
	}
	if err := s.CheckBulk(f, act, schedule.BulkOptions{Spread: a.Spread, Limit: count}); err != nil {
		return Job{}, err
	}
	q := request{Bulk: &bulkRequest{f, a, count}}
	return c.start(ctx, who, Entry{Action: "bulk." + a.Kind, Detail: q.detail(false)}, count, q)
}

// bulk runs the job, from where it was interrupted.
func (c *Core) bulk(ctx context.Context, w *working, q bulkRequest) (string, error) {
	s, err := c.store()
	if err != nil {
		return "", err
	}
	act, err := q.Action.action()
	if err != nil {
		return "", err
	}
	before := w.now().Done
	o := schedule.BulkOptions{Limit: q.Count - before, Spread: q.Action.Spread, Pause: breath}
	if o.Limit <= 0 {
		return done(before), nil
	}
	// The others leave out by themselves what they have changed.
	if q.Action.Kind == BulkMoveBy && w.now().place != "" {
		if o.After, err = schedule.ParseBulkPlace(w.now().place); err != nil {
			return "", err
		}
	}
	o.Record = func(ctx context.Context, tx sqldb.Tx, p schedule.BulkProgress, ids []any) error {
		return w.reached(ctx, tx, before+p.Changed, p.Place.String(), ids)
	}
	o.Progress = func(p schedule.BulkProgress) { w.at(before+p.Changed, p.Place.String()) }
	p, err := s.Bulk(ctx, q.Filter, act, o)
	if errors.Is(err, errNotMine) {
		err = errNotMine
	}
	return done(before + p.Changed), err
}

func done(n int64) string { return fmt.Sprintf("%d tasks changed", n) }

package schedule

import (
	"errors"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/recur"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/relay"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/rows"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Misfire is what becomes of occurrences whose time passed while no relay ran.
type Misfire string

// An occurrence is missed when it is more than a minute late and no handler has
// begun with it.
const (
	MisfireSkip Misfire = recur.MisfireSkip // they are left out
	MisfireOnce Misfire = recur.MisfireOnce // the last of them happens; the default
	MisfireAll  Misfire = recur.MisfireAll  // they all happen, up to the last MisfireLimit of them
)

// Overlap is whether an occurrence may begin while the one before it is pending.
type Overlap string

// The task of an occurrence is pending until its handler has committed, or it was
// cancelled or failed. One to an exchange is done with the first queue whose handler
// has committed; others may be at it still.
const (
	OverlapAllow Overlap = recur.OverlapAllow // the default
	OverlapSkip  Overlap = recur.OverlapSkip  // it is left out
)

// Recurring is one row of rabbitdelay_schedules: a task that recurs by a cron
// expression or an interval. Each occurrence is a task of its own. The first part
// is the caller's; the second is kept by this package, and ignored where a
// Recurring is written.
type Recurring struct {
	// Name identifies it: 1 to 200 bytes of UTF-8 without @ and NUL. The tasks'
	// ids are NAME@INSTANT; see ParseOccurrence.
	Name string
	// Cron has five fields (minute, hour, day of month, month, weekday), six with
	// seconds in front, or is @hourly, @daily, @weekly, @monthly or @yearly. As in
	// Vixie's cron one of the two fields of days is enough, unless one begins with a
	// star, also with a step such as */2: then both must match. L, W and # are as in
	// Quartz.
	Cron string
	// TimeZone of Cron is an IANA name such as Europe/Berlin; default UTC. Of a time
	// that comes twice because clocks are set back, the first is taken; a time that
	// is left out because they are set forward is the first instant after the gap.
	// An expression of every hour is a rhythm, and goes on through both.
	TimeZone string
	// Every is an interval instead, in whole seconds, of elapsed time. It counts from
	// Start, or else from the creation, one Every after which is the first.
	Every time.Duration
	// Start is the first instant that may be an occurrence, End the first that may
	// not. Zero for no bound.
	Start, End time.Time
	// Jitter delays each occurrence by up to as much, at most a day. How much is
	// decided by name and instant. Default 0.
	Jitter time.Duration
	// Misfire is what happens after an outage; default MisfireOnce. MisfireLimit
	// bounds MisfireAll; default 100, at most 10,000.
	Misfire      Misfire
	MisfireLimit int
	// Overlap is what happens while the last occurrence is pending; default
	// OverlapAllow. OverlapSkip does not go with MisfireAll.
	Overlap Overlap

	// Task is what each occurrence is. Its ID and DeliverAt are not used.
	Task Task

	Paused    bool
	Origin    string    // OriginConfig if Apply wrote it
	Version   int64     // raised by every change
	NextAt    time.Time // the next occurrence that is no task yet; zero for none
	LastAt    time.Time // the last that became a task; it may be ahead
	SkippedAt time.Time // the last that was left out, by Misfire or Overlap
	LastError string    // why no occurrences follow at present; only what other programs wrote can be wrong
	CreatedAt time.Time
	UpdatedAt time.Time
}

func (r *Recurring) scheduleRow() *rows.Schedule {
	return &rows.Schedule{
		Name: r.Name, Cron: r.Cron, TimeZone: r.TimeZone, Every: r.Every, Start: r.Start, End: r.End, Jitter: r.Jitter,
		Misfire: string(r.Misfire), MisfireLimit: r.MisfireLimit, Overlap: string(r.Overlap), Task: *r.Task.row(),
		Paused: r.Paused, Origin: r.Origin, CreatedAt: r.CreatedAt,
	}
}

func recurringOf(s *rows.Schedule) Recurring {
	return Recurring{
		Name: s.Name, Cron: s.Cron, TimeZone: s.TimeZone, Every: s.Every, Start: s.Start, End: s.End, Jitter: s.Jitter,
		Misfire: Misfire(s.Misfire), MisfireLimit: s.MisfireLimit, Overlap: Overlap(s.Overlap), Task: taskOf(&s.Task),
		Paused: s.Paused, Origin: s.Origin, Version: s.Version, NextAt: s.NextAt, LastAt: s.LastAt, SkippedAt: s.SkippedAt,
		LastError: s.LastError, CreatedAt: s.CreatedAt, UpdatedAt: s.UpdatedAt,
	}
}

// recurringError returns an error of the room with its problems as *RecurringErrors.
func recurringError(err error) error {
	e, ok := errors.AsType[*recur.Error](err)
	if !ok {
		return err
	}
	var errs []error
	for _, p := range e.Problems {
		errs = append(errs, &RecurringError{Name: e.Name, Field: p.Field, Reason: p.Reason})
	}
	return errors.Join(errs...)
}

// Validate checks what a caller writes. The error wraps a *RecurringError for each
// field that is wrong.
func (r Recurring) Validate() error {
	_, err := recur.Check(r.scheduleRow(), Config{}.WithDefaults().MaxBody, relay.Check)
	return recurringError(err)
}

// Occurrence is one time at which a Recurring happens.
type Occurrence struct {
	ID        string    // of its task
	At        time.Time // by the timetable, in its time zone
	DeliverAt time.Time // with jitter
}

// ParseOccurrence takes the id of an occurrence's task apart: the name of the
// Recurring, and the instant of its timetable, or the one at which it was fired.
// ok is false for the id of any other task.
func ParseOccurrence(id string) (name string, at time.Time, ok bool) { return recur.Parse(id) }

// Next returns the next n occurrences after an instant, fewer if it ends before. It
// goes by the timetable alone, whether it is paused or not. The error is a
// *RecurringError.
func (r Recurring) Next(after time.Time, n int) ([]Occurrence, error) {
	found, err := recur.Next(r.scheduleRow(), after, n)
	if err != nil {
		return nil, recurringError(err)
	}
	var list []Occurrence
	for _, o := range found {
		list = append(list, Occurrence(o))
	}
	return list, nil
}

// RecurringState is whether a Recurring makes tasks, and why not.
type RecurringState string

// Paused and wrong ones make no tasks until somebody changes them.
const (
	RecurringActive RecurringState = "active"
	RecurringPaused RecurringState = "paused"
	RecurringEnded  RecurringState = "ended" // no occurrence follows
	RecurringWrong  RecurringState = "wrong" // LastError says why
)

// State returns whether it makes tasks. One in a time zone that is not known here is
// active: its relay says what is wrong.
func (r Recurring) State(now time.Time) RecurringState {
	switch {
	case r.LastError != "":
		return RecurringWrong
	case r.Paused:
		return RecurringPaused
	}
	if next, err := r.Next(now, 1); err == nil && len(next) == 0 {
		return RecurringEnded
	}
	return RecurringActive
}

// Upcoming returns the next n occurrences that will happen as things stand: none if it
// is paused or wrong, nor if its time zone is not known here.
func (r Recurring) Upcoming(now time.Time, n int) []Occurrence {
	if r.Paused || r.LastError != "" {
		return nil
	}
	list, err := r.Next(now, n)
	if err != nil {
		return nil
	}
	return list
}

// Timetable returns when it recurs, such as "30 2 * * * Europe/Berlin" or "every 15m".
func (r Recurring) Timetable() string {
	if r.Cron == "" {
		return "every " + topology.FormatDuration(r.Every)
	}
	setDefault(&r.TimeZone, "UTC")
	return r.Cron + " " + r.TimeZone
}

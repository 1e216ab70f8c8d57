package schedule

import (
	"errors"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/recur"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/relay"
	"github.com/rabbitdelay/rabbitdelay/internal/rows"
)

// Misfire is the policy for occurrences whose time passed while no relay was running.
type Misfire string

// The misfire policies. An occurrence is missed when it is more than a minute late and no handler has
// started it.
const (
	MisfireSkip Misfire = recur.MisfireSkip // missed occurrences are skipped
	MisfireOnce Misfire = recur.MisfireOnce // only the last missed occurrence is run; the default
	MisfireAll  Misfire = recur.MisfireAll  // all missed occurrences are run, but at most the latest MisfireLimit of them
)

// Overlap is the policy for an occurrence that is due while the previous one is pending.
type Overlap string

// The overlap policies. Here, the task of an occurrence counts as pending until its handler has committed, or until it
// is cancelled, expires or fails. A task that is sent to an exchange is done as soon as the handler of the first queue
// has committed, although handlers of other queues may still be working.
const (
	OverlapAllow Overlap = recur.OverlapAllow // the occurrence is run as well; the default
	OverlapSkip  Overlap = recur.OverlapSkip  // the occurrence is skipped
)

// Recurring is one row in rabbitdelay_schedules: a task that recurs by a cron expression or at an interval. Each
// occurrence is a separate task. The caller sets the fields of the first part. The fields of the second part are
// maintained by this package, and are ignored when a Recurring is written.
type Recurring struct {
	// Name identifies the recurring task: 1 to 200 bytes of UTF-8 without @ and NUL that do not end in a space. The ids
	// of the tasks are the name, @ and the occurrence's time; see ParseOccurrence.
	Name string
	// Cron is an expression with five fields (minute, hour, day of month, month, weekday), or six fields with seconds
	// in front, or @hourly, @daily, @weekly, @monthly or @yearly. As in Vixie's cron, a day has to match one of the two
	// day fields. If one of them begins with a star or a question mark, even with a step such as */2, a day has to
	// match both. L, W and # are as in Quartz.
	Cron string
	// TimeZone is the time zone of Cron, an IANA name such as Europe/Berlin. The default is UTC. If a time occurs twice
	// because clocks are set back, the first of the two is used. A time that does not exist because clocks are set
	// forward is moved to the end of the gap. An expression that matches every hour keeps its rhythm across both
	// changes.
	TimeZone string
	// Every is an interval of elapsed time in whole seconds. Set either Cron or Every. The intervals are counted from
	// Start. If Start is zero, the first occurrence is one interval after the creation.
	Every time.Duration
	// Start is the earliest possible time of an occurrence. All occurrences are before End. Zero means no bound.
	Start, End time.Time
	// Jitter delays each occurrence by a duration between 0 and Jitter, which depends only on the name and on the time
	// of the occurrence. The default is 0, the maximum a day.
	Jitter time.Duration
	// Misfire is the policy after an outage. The default is MisfireOnce. MisfireLimit is the maximum number of
	// occurrences that MisfireAll runs. Its default is 100, its maximum 10,000.
	Misfire      Misfire
	MisfireLimit int
	// Overlap is the policy while the previous occurrence is pending. The default is OverlapAllow.
	// OverlapSkip cannot be combined with MisfireAll.
	Overlap Overlap

	// Task is the template of each occurrence's task. Its ID and DeliverAt are ignored.
	Task Task

	Paused    bool
	Origin    string    // "config" if Apply wrote it
	Version   int64     // increases with every change
	NextAt    time.Time // the next occurrence that is not yet a task; zero for none
	LastAt    time.Time // the last occurrence that became a task; it may be in the future
	SkippedAt time.Time // the last occurrence that was skipped because of Misfire or Overlap
	LastError string    // why no tasks are currently created; set only if another program wrote an invalid row, or if the database refuses the tasks
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
		Misfire: Misfire(s.Misfire), MisfireLimit: s.MisfireLimit, Overlap: Overlap(s.Overlap), Task: Task(s.Task.Content),
		Paused: s.Paused, Origin: s.Origin, Version: s.Version, NextAt: s.NextAt, LastAt: s.LastAt, SkippedAt: s.SkippedAt,
		LastError: s.LastError, CreatedAt: s.CreatedAt, UpdatedAt: s.UpdatedAt,
	}
}

// recurringError converts each problem of a *recur.Error to a *RecurringError, and joins them.
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

// Validate checks the fields that the caller sets. The error wraps a *RecurringError for each invalid field.
func (r Recurring) Validate() error {
	_, err := recur.Check(r.scheduleRow(), Config{}.WithDefaults().MaxBody, relay.Check)
	return recurringError(err)
}

// Occurrence is one time at which a Recurring is due.
type Occurrence struct {
	ID    string    // the id of its task
	At    time.Time // its time by the timetable, in the time zone of the Recurring
	DueAt time.Time // At plus the jitter
}

// ParseOccurrence splits the id of an occurrence's task into the name of the Recurring and the time of
// the occurrence by the timetable, or the time at which it was run by hand. ok is false for the id of any
// other task.
func ParseOccurrence(id string) (name string, at time.Time, ok bool) { return recur.Parse(id) }

// Next returns the next n occurrences after a time, or fewer if the Recurring ends earlier. It computes them from the
// rule alone, even if the Recurring is paused. The error wraps a *RecurringError for each invalid field.
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

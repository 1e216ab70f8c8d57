package schedule

import (
	"bytes"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
	_ "time/tzdata" // half a megabyte, for a relay in an image without time zones, which could not read what others wrote

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/timetable"
)

// Misfire says what becomes of occurrences whose time passed while no relay ran.
type Misfire string

// An occurrence is missed when it is more than a minute late and no handler has
// begun with it.
const (
	MisfireSkip Misfire = "skip" // they are left out
	MisfireOnce Misfire = "once" // the last of them happens; the default
	MisfireAll  Misfire = "all"  // they all happen, up to the last MisfireLimit of them
)

// Overlap says whether an occurrence may begin while the one before it is pending.
type Overlap string

// The task of an occurrence is pending until its handler has committed, or it was
// cancelled or failed. One to an exchange is done with the first queue whose handler
// has committed; others may be at it still.
const (
	OverlapAllow Overlap = "allow" // the default
	OverlapSkip  Overlap = "skip"  // it is left out
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

	// Task is what each occurrence is, without ID and DeliverAt.
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

// Bounds of a Recurring.
const (
	maxScheduleName = 200
	maxJitter       = 24 * time.Hour
	maxMisfire      = 10_000
	maxEvery        = 100 * 366 * 24 * time.Hour
)

func (r *Recurring) setDefaults() {
	setDefault(&r.TimeZone, "UTC")
	setDefault(&r.Misfire, MisfireOnce)
	setDefault(&r.MisfireLimit, 100)
	setDefault(&r.Overlap, OverlapAllow)
}

// Validate checks what a caller writes. The error wraps a *RecurringError for each
// field that is wrong.
func (r Recurring) Validate() error {
	_, err := r.check(Config{}.WithDefaults().MaxBody)
	return err
}

// check validates, and returns the timetable. An unknown time zone is the last of the
// errors.
func (r *Recurring) check(maxBody int) (*timetable.Timetable, error) {
	r.setDefaults()
	var errs []error
	bad := func(wrong bool, field, format string, args ...any) {
		if wrong {
			errs = append(errs, r.bad(field, format, args...))
		}
	}
	reason := checkScheduleName(r.Name)
	bad(reason != "", "Name", "%s", reason)
	switch {
	case !r.Start.IsZero() && millis(r.Start) > maxDue, !r.End.IsZero() && millis(r.End) > maxDue:
		bad(true, "End", "expected instants up to the year 9999")
	case !r.Start.IsZero() && !r.End.IsZero() && !r.Start.Before(r.End):
		bad(true, "End", "%v, expected an instant after Start, %v", r.End, r.Start)
	}
	bad(r.Jitter < 0 || r.Jitter > maxJitter, "Jitter", "%v, expected 0 to %v", r.Jitter, maxJitter)
	bad(r.Misfire != MisfireSkip && r.Misfire != MisfireOnce && r.Misfire != MisfireAll, "Misfire", "%q, expected skip, once or all", r.Misfire)
	bad(r.MisfireLimit < 1 || r.MisfireLimit > maxMisfire, "MisfireLimit", "%d, expected 1 to %d", r.MisfireLimit, maxMisfire)
	bad(r.Overlap != OverlapAllow && r.Overlap != OverlapSkip, "Overlap", "%q, expected allow or skip", r.Overlap)
	bad(r.Overlap == OverlapSkip && r.Misfire == MisfireAll, "Overlap", "skip does not go with the misfire policy all, whose occurrences overlap; expected allow, or another policy")
	task := r.Task
	task.ID, task.DeliverAt = r.Name, time.Unix(0, 0)
	if te, ok := errors.AsType[*TaskError](task.validate(maxBody)); ok && reason == "" {
		bad(true, te.Field, "%s", te.Reason)
	}
	t, err := r.compile()
	if err = errors.Join(append(errs, err)...); err != nil {
		return nil, err
	}
	return t, nil
}

func (r *Recurring) bad(field, format string, args ...any) error {
	return &RecurringError{Name: r.Name, Field: field, Reason: fmt.Sprintf(format, args...)}
}

func checkScheduleName(name string) (reason string) {
	switch {
	case name == "":
		return "is empty"
	case len(name) > maxScheduleName:
		return fmt.Sprintf("%d bytes, expected at most %d", len(name), maxScheduleName)
	case !isText(name) || strings.Contains(name, "@"):
		return fmt.Sprintf("%q, expected UTF-8 without @ and NUL", name)
	case strings.HasSuffix(name, " "):
		return "ends in a space, which some databases ignore"
	}
	return ""
}

func (r *Recurring) compile() (*timetable.Timetable, error) {
	switch {
	case (r.Cron == "") == (r.Every == 0):
		return nil, r.bad("Cron", "expected either Cron or Every, got %q and %v", r.Cron, r.Every)
	case r.Every < 0 || r.Every > maxEvery || r.Every%time.Second != 0:
		return nil, r.bad("Every", "%v, expected whole seconds up to 100 years", r.Every)
	}
	zone, unknown := zoneOf(r.TimeZone)
	if unknown != nil {
		unknown = r.bad("TimeZone", "%v", unknown)
		zone = time.UTC // for what else is wrong
	}
	rule := timetable.Rule{Cron: r.Cron, Zone: zone, Every: r.Every, Anchor: r.Start, Start: r.Start, End: r.End}
	if r.Start.IsZero() {
		rule.Anchor = r.CreatedAt.Add(r.Every)
	}
	t, err := timetable.New(rule)
	if err != nil {
		err = r.bad("Cron", "%q: %v", r.Cron, err)
	}
	if err = errors.Join(err, unknown); err != nil {
		return nil, err
	}
	return t, nil
}

// zones holds time zones that were read, which are files.
var zones sync.Map // name -> *time.Location

func zoneOf(name string) (*time.Location, error) {
	if zone, ok := zones.Load(name); ok {
		return zone.(*time.Location), nil //nolint:errcheck,forcetypeassert // it holds nothing else
	}
	zone, err := time.LoadLocation(name)
	if err != nil || name == "Local" {
		return nil, fmt.Errorf("%q is unknown, expected an IANA name such as Europe/Berlin", name)
	}
	zones.Store(name, zone)
	return zone, nil
}

// Occurrence is one time at which a Recurring happens.
type Occurrence struct {
	ID        string    // of its task
	At        time.Time // by the timetable, in its time zone
	DeliverAt time.Time // with jitter
}

// occurrenceLayout of the instant in an id; a fired one has milliseconds.
const (
	occurrenceLayout = "2006-01-02T15:04:05Z"
	firedLayout      = "2006-01-02T15:04:05.000Z"
)

func (r *Recurring) occurrence(at time.Time) Occurrence {
	o := Occurrence{ID: r.Name + "@" + at.UTC().Format(occurrenceLayout), At: at, DeliverAt: at}
	if zone, err := zoneOf(r.TimeZone); err == nil {
		o.At = at.In(zone)
	}
	if ms := r.Jitter.Milliseconds(); ms > 0 {
		h := fnv.New64a()
		_, _ = h.Write([]byte(o.ID)) // it never fails
		o.DeliverAt = at.Add(time.Duration(h.Sum64()%uint64(ms+1)) * time.Millisecond)
	}
	return o
}

// ParseOccurrence takes the id of an occurrence's task apart: the name of the
// Recurring, and the instant of its timetable, or the one at which it was fired.
// ok is false for the id of any other task.
func ParseOccurrence(id string) (name string, at time.Time, ok bool) {
	name, instant, ok := strings.Cut(id, "@")
	if !ok || checkScheduleName(name) != "" {
		return "", time.Time{}, false
	}
	at, err := time.Parse(time.RFC3339, instant)
	if err != nil || !strings.HasSuffix(instant, "Z") {
		return "", time.Time{}, false
	}
	return name, at, true
}

// Next are the next n occurrences after an instant, fewer if it ends before. It
// goes by the timetable alone, whether it is paused or not. The error is a
// *RecurringError.
func (r Recurring) Next(after time.Time, n int) ([]Occurrence, error) {
	r.setDefaults()
	t, err := r.compile()
	if err != nil {
		return nil, err
	}
	var list []Occurrence
	for at := t.Next(after); !at.IsZero() && len(list) < n; at = t.Next(at) {
		list = append(list, r.occurrence(at))
	}
	return list, nil
}

// same tells whether two say the same, apart from what this package keeps.
func (r *Recurring) same(o *Recurring) bool {
	return r.Name == o.Name && r.Cron == o.Cron && r.TimeZone == o.TimeZone && r.Every == o.Every &&
		sameInstant(r.Start, o.Start) && sameInstant(r.End, o.End) && r.Jitter.Milliseconds() == o.Jitter.Milliseconds() &&
		r.Misfire == o.Misfire && r.MisfireLimit == o.MisfireLimit && r.Overlap == o.Overlap &&
		r.Task.carries(&o.Task)
}

// carries tells whether two tasks go to the same place with the same message.
func (t *Task) carries(o *Task) bool {
	return t.Queue == o.Queue && t.Exchange == o.Exchange && t.RoutingKey == o.RoutingKey &&
		bytes.Equal(t.Body, o.Body) && t.ContentType == o.ContentType && t.Type == o.Type &&
		t.CorrelationID == o.CorrelationID && t.Priority == o.Priority &&
		t.ExpiresAfter == o.ExpiresAfter && maps.Equal(t.Headers, o.Headers) && slices.Equal(t.Tags, o.Tags)
}

// sameInstant compares as the table does.
func sameInstant(a, b time.Time) bool {
	return a.IsZero() == b.IsZero() && (a.IsZero() || millis(a) == millis(b))
}

package recur

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
	_ "time/tzdata" // adds half a megabyte to the program, but lets a relay in an image without time zones read every row

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/units"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/recur/timetable"
	"github.com/rabbitdelay/rabbitdelay/internal/rows"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// The misfire and overlap policies of a row. schedule.Misfire and schedule.Overlap document them.
const (
	MisfireSkip  = "skip"
	MisfireOnce  = "once"
	MisfireAll   = "all"
	OverlapAllow = "allow"
	OverlapSkip  = "skip"
)

// Limits of a row: the length of a name in bytes, and MisfireLimit.
const (
	maxName    = 200
	maxMisfire = 10_000
)

// Error is returned for an invalid recurring task, with one problem per invalid field.
type Error struct {
	Name     string
	Problems []*rows.FieldError // at least one
}

func (e *Error) Error() string {
	texts := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		texts[i] = fmt.Sprintf("recurring task %q: %v", e.Name, p)
	}
	return strings.Join(texts, "\n")
}

func wrong(s *rows.Schedule, field, format string, args ...any) *Error {
	return &Error{s.Name, []*rows.FieldError{{Field: field, Reason: fmt.Sprintf(format, args...)}}}
}

// SetDefaults fills in the defaults of empty fields.
func SetDefaults(s *rows.Schedule) {
	s.TimeZone = cmp.Or(s.TimeZone, "UTC")
	s.Misfire = cmp.Or(s.Misfire, MisfireOnce)
	s.MisfireLimit = cmp.Or(s.MisfireLimit, 100)
	s.Overlap = cmp.Or(s.Overlap, OverlapAllow)
}

// CheckTask returns the problem of a task that is invalid or whose body is longer than maxBody bytes. It returns nil
// for a valid task.
type CheckTask func(t *rows.Task, maxBody int) *rows.FieldError

// Check fills in defaults, validates a row and returns its timetable. The error is an *Error. If the time zone is
// unknown, that is the last of its problems, which onlyZone relies on.
func Check(s *rows.Schedule, maxBody int, checkTask CheckTask) (*timetable.Timetable, error) {
	SetDefaults(s)
	found := &Error{Name: s.Name}
	bad := func(is bool, field, format string, args ...any) {
		if is {
			found.Problems = append(found.Problems, &rows.FieldError{Field: field, Reason: fmt.Sprintf(format, args...)})
		}
	}
	reason := checkName(s.Name)
	bad(reason != "", "Name", "%s", reason)
	switch {
	case units.Instant(s.Start) != "":
		bad(true, "Start", "%s", units.Instant(s.Start))
	case units.Instant(s.End) != "":
		bad(true, "End", "%s", units.Instant(s.End))
	case !s.Start.IsZero() && rows.Millis(s.Start) > rows.MaxDue, !s.End.IsZero() && rows.Millis(s.End) > rows.MaxDue:
		bad(true, "End", "expected times up to the year 9999")
	case !s.Start.IsZero() && !s.End.IsZero() && !s.Start.Before(s.End):
		bad(true, "End", "%v, expected a time after the start, %v", s.End, s.Start)
	}
	bad(s.Jitter < 0 || s.Jitter > rows.MaxJitter, "Jitter", "%s, expected 0 to %s", topology.FormatDuration(s.Jitter), topology.FormatDuration(rows.MaxJitter))
	bad(units.Duration(s.Jitter) != "", "Jitter", "%s", units.Duration(s.Jitter))
	bad(s.Misfire != MisfireSkip && s.Misfire != MisfireOnce && s.Misfire != MisfireAll, "Misfire", "%q, expected skip, once or all", s.Misfire)
	bad(s.MisfireLimit < 1 || s.MisfireLimit > maxMisfire, "MisfireLimit", "%d, expected 1 to %d", s.MisfireLimit, maxMisfire)
	bad(s.Overlap != OverlapAllow && s.Overlap != OverlapSkip, "Overlap", "%q, expected allow or skip", s.Overlap)
	bad(s.Overlap == OverlapSkip && s.Misfire == MisfireAll, "Overlap", "skip cannot be combined with the misfire policy all, whose occurrences overlap; expected allow, or another misfire policy")
	task := s.Task
	task.ID, task.DeliverAt = s.Name, time.Unix(0, 0)
	if problem := checkTask(&task, maxBody); problem != nil && reason == "" {
		found.Problems = append(found.Problems, problem)
	}
	t, problems := compile(s)
	if found.Problems = append(found.Problems, problems...); len(found.Problems) > 0 {
		return nil, found
	}
	return t, nil
}

func checkName(name string) (reason string) {
	switch {
	case name == "":
		return "is empty"
	case len(name) > maxName:
		return fmt.Sprintf("%d bytes, expected at most %d", len(name), maxName)
	case !rows.IsText(name) || strings.Contains(name, "@"):
		return fmt.Sprintf("%q, expected UTF-8 without @ and NUL", name)
	case strings.HasSuffix(name, " "):
		return "ends in a space, which some databases ignore"
	}
	return ""
}

// compile returns the timetable of a row, or the problems of its rule.
func compile(s *rows.Schedule) (t *timetable.Timetable, problems []*rows.FieldError) {
	bad := func(field, format string, args ...any) {
		problems = append(problems, &rows.FieldError{Field: field, Reason: fmt.Sprintf(format, args...)})
	}
	switch {
	case (s.Cron == "") == (s.Every == 0):
		if s.Cron == "" {
			bad("Cron", "neither a cron expression nor an interval is set; expected one of them")
		} else {
			bad("Cron", "both a cron expression (%q) and an interval (%s) are set; expected only one of them", s.Cron, topology.FormatDuration(s.Every))
		}
		return nil, problems
	case s.Every < 0 || s.Every > rows.MaxEvery || s.Every%time.Second != 0:
		bad("Every", "%s, expected whole seconds up to 100 years", topology.FormatDuration(s.Every))
		return nil, problems
	}
	zone, unknown := zoneOf(s.TimeZone)
	if unknown != nil {
		zone = time.UTC // continue with UTC to find other problems too
	}
	rule := timetable.Rule{Cron: s.Cron, Zone: zone, Every: s.Every, Anchor: s.Start, Start: s.Start, End: s.End}
	if s.Start.IsZero() {
		rule.Anchor = s.CreatedAt.Add(s.Every)
	}
	t, err := timetable.New(rule)
	if err != nil {
		bad("Cron", "%q: %v", s.Cron, err)
	}
	if unknown != nil {
		bad("TimeZone", "%v", unknown)
	}
	return t, problems
}

// Zones caches time zones, because loading one reads a file.
var Zones sync.Map // name -> *time.Location

func zoneOf(name string) (*time.Location, error) {
	if zone, ok := Zones.Load(name); ok {
		return zone.(*time.Location), nil //nolint:errcheck,forcetypeassert // it holds nothing else
	}
	zone, err := time.LoadLocation(name)
	if err != nil || name == "Local" {
		return nil, fmt.Errorf("%q is unknown; expected an IANA name such as Europe/Berlin", name)
	}
	Zones.Store(name, zone)
	return zone, nil
}

// same reports whether two rows are equal, ignoring the column paused and the columns that relays maintain.
func same(a, b *rows.Schedule) bool {
	return a.Name == b.Name && a.Cron == b.Cron && a.TimeZone == b.TimeZone && a.Every == b.Every &&
		sameInstant(a.Start, b.Start) && sameInstant(a.End, b.End) && a.Jitter.Milliseconds() == b.Jitter.Milliseconds() &&
		a.Misfire == b.Misfire && a.MisfireLimit == b.MisfireLimit && a.Overlap == b.Overlap && a.Origin == b.Origin &&
		rows.SameMessage(&a.Task, &b.Task)
}

// sameInstant compares two times in the table's precision, milliseconds.
func sameInstant(a, b time.Time) bool {
	return a.IsZero() == b.IsZero() && (a.IsZero() || rows.Millis(a) == rows.Millis(b))
}

// onlyZone reports whether an unknown time zone is the only problem.
func onlyZone(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Problems[0].Field == "TimeZone"
}

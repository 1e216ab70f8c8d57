package recur

import (
	"hash/fnv"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/rows"
)

// Occurrence is one time at which a recurring task is due.
type Occurrence struct {
	ID    string    // the id of its task
	At    time.Time // its time by the timetable, in the time zone of the recurring task
	DueAt time.Time // At plus the jitter
}

// The formats of the time in a task's id. An occurrence that was run by hand has milliseconds.
const (
	occurrenceLayout = "2006-01-02T15:04:05Z"
	extraLayout      = "2006-01-02T15:04:05.000Z"
)

// occurrenceOf returns the occurrence of a row's recurring task at a time.
func occurrenceOf(s *rows.Schedule, at time.Time) Occurrence {
	o := Occurrence{ID: s.Name + "@" + at.UTC().Format(occurrenceLayout), At: at, DueAt: at}
	if zone, err := zoneOf(s.TimeZone); err == nil {
		o.At = at.In(zone)
	}
	if ms := s.Jitter.Milliseconds(); ms > 0 {
		h := fnv.New64a()
		_, _ = h.Write([]byte(o.ID)) // never fails
		o.DueAt = at.Add(time.Duration(h.Sum64()%uint64(ms+1)) * time.Millisecond)
	}
	return o
}

// Parse splits the id of an occurrence's task into the name of the recurring task and the
// occurrence's time. ok is false for other ids.
func Parse(id string) (name string, at time.Time, ok bool) {
	name, instant, ok := strings.Cut(id, "@")
	if !ok || checkName(name) != "" {
		return "", time.Time{}, false
	}
	at, err := time.Parse(time.RFC3339, instant)
	if err != nil || !strings.HasSuffix(instant, "Z") {
		return "", time.Time{}, false
	}
	return name, at, true
}

// Next returns the next n occurrences after a time. It computes them from the timetable and does not read any tasks.
// The error is an *Error.
func Next(s *rows.Schedule, after time.Time, n int) ([]Occurrence, error) {
	SetDefaults(s)
	t, problems := compile(s)
	if len(problems) > 0 {
		return nil, &Error{s.Name, problems}
	}
	var list []Occurrence
	for at := t.Next(after); !at.IsZero() && len(list) < n; at = t.Next(at) {
		list = append(list, occurrenceOf(s, at))
	}
	return list, nil
}

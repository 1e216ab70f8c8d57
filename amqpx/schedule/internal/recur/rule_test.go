package recur

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/relay"
	"github.com/rabbitdelay/rabbitdelay/internal/rows"
)

// The error names each invalid field and the expected value.
func TestCheck(t *testing.T) {
	for name, x := range map[string]struct {
		spoil func(s *rows.Schedule)
		want  string // the problems, line by line; empty for none
	}{
		"nothing":             {func(*rows.Schedule) {}, ""},
		"no name":             {func(s *rows.Schedule) { s.Name = "" }, "name: is empty"},
		"a long name":         {func(s *rows.Schedule) { s.Name = strings.Repeat("x", 201) }, "name: 201 bytes, expected at most 200"},
		"a name with @":       {func(s *rows.Schedule) { s.Name = "a@b" }, `name: "a@b", expected UTF-8 without @ and NUL`},
		"a space":             {func(s *rows.Schedule) { s.Name = "a " }, "name: ends in a space"},
		"cron and interval":   {func(s *rows.Schedule) { s.Every = time.Hour }, `cron: both a cron expression ("@daily") and an interval (1h) are set`},
		"neither":             {func(s *rows.Schedule) { s.Cron = "" }, "cron: neither a cron expression nor an interval is set"},
		"an odd expression":   {func(s *rows.Schedule) { s.Cron = "0 8 * *" }, "expected 5 fields"},
		"half a second":       {func(s *rows.Schedule) { s.Cron, s.Every = "", 1500*time.Millisecond }, "every: 1.5s, expected whole seconds"},
		"a negative interval": {func(s *rows.Schedule) { s.Cron, s.Every = "", -time.Second }, "every: -1s"},
		"a long interval":     {func(s *rows.Schedule) { s.Cron, s.Every = "", rows.MaxEvery+time.Second }, "every: "},
		"an unknown zone":     {func(s *rows.Schedule) { s.TimeZone = "Mars/Phobos" }, `time zone: "Mars/Phobos" is unknown`},
		"this machine's zone": {func(s *rows.Schedule) { s.TimeZone = "Local" }, `time zone: "Local" is unknown`},
		"no span":             {func(s *rows.Schedule) { s.Start, s.End = time.Unix(2e9, 0), time.Unix(2e9-1, 0) }, "end: "},
		"a far start":         {func(s *rows.Schedule) { s.Start = time.UnixMilli(rows.MaxDue + 1) }, "end: expected times up to the year 9999"},
		"a far end":           {func(s *rows.Schedule) { s.End = time.UnixMilli(rows.MaxDue + 1) }, "end: expected times up to the year 9999"},
		"negative jitter":     {func(s *rows.Schedule) { s.Jitter = -1 }, "jitter: -1ns, expected 0 to 1d"},
		"much jitter":         {func(s *rows.Schedule) { s.Jitter = rows.MaxJitter + 1 }, "jitter: "},
		"an odd policy":       {func(s *rows.Schedule) { s.Misfire = "some" }, `misfire: "some", expected skip, once or all`},
		"a negative limit":    {func(s *rows.Schedule) { s.MisfireLimit = -1 }, "misfire limit: -1, expected 1 to 10000"},
		"a large limit":       {func(s *rows.Schedule) { s.MisfireLimit = 10_001 }, "misfire limit: 10001"},
		"an odd overlap":      {func(s *rows.Schedule) { s.Overlap = "some" }, `overlap: "some", expected allow or skip`},
		"all without overlap": {func(s *rows.Schedule) { s.Misfire, s.Overlap = MisfireAll, OverlapSkip }, "overlap: skip cannot be combined with the misfire policy all"},
		"no destination":      {func(s *rows.Schedule) { s.Task.Queue = "" }, "queue: "},
		"a large body":        {func(s *rows.Schedule) { s.Task.Body = make([]byte, 101) }, "body: 101 bytes"},
		"several":             {func(s *rows.Schedule) { s.Jitter, s.TimeZone = -1, "Local" }, "jitter: -1ns, expected 0 to 1d\ntime zone: "},
	} {
		s := rows.Schedule{Name: "a", Cron: "@daily", Task: toQ()}
		x.spoil(&s)
		_, err := Check(&s, 100, relay.Check)
		if x.want == "" {
			check(t, err)
			continue
		}
		e, ok := errors.AsType[*Error](err)
		if !ok {
			t.Errorf("%s: Check returned %v, want an *Error", name, err)
			continue
		}
		prefix := fmt.Sprintf("recurring task %q: ", s.Name)
		if text := strings.ReplaceAll(e.Error(), prefix, ""); !strings.Contains(text, x.want) {
			t.Errorf("%s: Check returned the error %q, want one with %q", name, text, x.want)
		}
		if lines := strings.Count(x.want, "\n") + 1; len(e.Problems) != lines {
			t.Errorf("%s: Check found %d problems, want %d: %v", name, len(e.Problems), lines, e)
		}
	}
}

// SetDefaults sets the defaults of empty fields.
func TestDefaults(t *testing.T) {
	s := rows.Schedule{}
	SetDefaults(&s)
	if got := fmt.Sprint(s.TimeZone, " ", s.Misfire, " ", s.MisfireLimit, " ", s.Overlap); got != "UTC once 100 allow" {
		t.Errorf(`SetDefaults: got %q, want "UTC once 100 allow"`, got)
	}
}

// Two recurring tasks are the same if their rows are equal, apart from the columns that relays and operators change.
func TestSame(t *testing.T) {
	base := func() rows.Schedule {
		task := toQ()
		task.Headers, task.Tags = map[string]string{"h": "v"}, []string{"t"}
		return rows.Schedule{Name: "a", Cron: "@daily", Start: time.UnixMilli(1_800_000_000_000), Jitter: time.Second, Task: task}
	}
	for name, x := range map[string]struct {
		change func(s *rows.Schedule)
		same   bool
	}{
		"nothing":            {func(*rows.Schedule) {}, true},
		"the state":          {func(s *rows.Schedule) { s.NextAt, s.LastError, s.Version, s.Paused = time.Now(), "x", 9, true }, true},
		"half a millisecond": {func(s *rows.Schedule) { s.Jitter += time.Millisecond / 2 }, true},
		"the name":           {func(s *rows.Schedule) { s.Name = "b" }, false},
		"the expression":     {func(s *rows.Schedule) { s.Cron = "@hourly" }, false},
		"the zone":           {func(s *rows.Schedule) { s.TimeZone = "Europe/Berlin" }, false},
		"the interval":       {func(s *rows.Schedule) { s.Every = time.Hour }, false},
		"the start":          {func(s *rows.Schedule) { s.Start = s.Start.Add(time.Millisecond) }, false},
		"no start":           {func(s *rows.Schedule) { s.Start = time.Time{} }, false},
		"the end":            {func(s *rows.Schedule) { s.End = s.Start }, false},
		"the jitter":         {func(s *rows.Schedule) { s.Jitter += time.Millisecond }, false},
		"the policy":         {func(s *rows.Schedule) { s.Misfire = MisfireSkip }, false},
		"its limit":          {func(s *rows.Schedule) { s.MisfireLimit = 3 }, false},
		"the overlap":        {func(s *rows.Schedule) { s.Overlap = OverlapSkip }, false},
		"the origin":         {func(s *rows.Schedule) { s.Origin = "file" }, false},
		"the queue":          {func(s *rows.Schedule) { s.Task.Queue = "r" }, false},
		"the exchange":       {func(s *rows.Schedule) { s.Task.Exchange = "e" }, false},
		"the key":            {func(s *rows.Schedule) { s.Task.RoutingKey = "k" }, false},
		"the body":           {func(s *rows.Schedule) { s.Task.Body = nil }, false},
		"the content type":   {func(s *rows.Schedule) { s.Task.ContentType = "x" }, false},
		"the type":           {func(s *rows.Schedule) { s.Task.Type = "x" }, false},
		"the correlation id": {func(s *rows.Schedule) { s.Task.CorrelationID = "x" }, false},
		"the priority":       {func(s *rows.Schedule) { s.Task.Priority = 1 }, false},
		"the expiry":         {func(s *rows.Schedule) { s.Task.ExpiresAfter = 1 }, false},
		"a header":           {func(s *rows.Schedule) { s.Task.Headers = nil }, false},
		"a tag":              {func(s *rows.Schedule) { s.Task.Tags = []string{"u"} }, false},
	} {
		a, b := base(), base()
		x.change(&b)
		if got := same(&a, &b); got != x.same {
			t.Errorf("same after a change of %s = %t, want %t", name, got, x.same)
		}
	}
}

// Parse accepts only ids of occurrences.
func TestParse(t *testing.T) {
	for id, want := range map[string]string{
		"a@2026-01-01T12:00:00Z":      "a 2026-01-01 12:00:00 +0000 UTC true",
		"a@2026-01-01T12:00:00.250Z":  "a 2026-01-01 12:00:00.25 +0000 UTC true",
		"a":                           "",
		"a@":                          "",
		"@2026-01-01T12:00:00Z":       "",
		"a@2026-01-01T12:00:00+01:00": "",
		"a@b@2026-01-01T12:00:00Z":    "",
		strings.Repeat("x", maxName+1) + "@2026-01-01T12:00:00Z": "",
	} {
		name, at, ok := Parse(id)
		if want == "" {
			want = " 0001-01-01 00:00:00 +0000 UTC false"
		}
		if got := fmt.Sprint(name, " ", at, " ", ok); got != want {
			t.Errorf("Parse(%q): got %s, want %s", id, got, want)
		}
	}
}

// Each occurrence is delayed by a random duration of up to the jitter. The duration is always the same for an
// occurrence.
func TestJitter(t *testing.T) {
	s := rows.Schedule{Name: "a", Cron: "@hourly", Jitter: 10 * time.Minute, Task: toQ()}
	list, err := Next(&s, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), 1000)
	check(t, err)
	var sum time.Duration
	for _, o := range list {
		d := o.DueAt.Sub(o.At)
		if d < 0 || d > 10*time.Minute {
			t.Fatalf("%s is delayed by %v, want 0 to 10m", o.ID, d)
		}
		sum += d
	}
	if mean := sum / 1000; mean < 4*time.Minute || mean > 6*time.Minute {
		t.Errorf("the mean jitter is %v, want 4m to 6m", mean)
	}
	c := newCalendar(t, 1)
	c.add(s)
	want, err := Next(&s, c.now, 1)
	check(t, err)
	conn, err := c.planners[0].DB.Conn(t.Context())
	check(t, err)
	task, err := conn.Get(t.Context(), want[0].ID)
	check(t, err)
	if !task.DeliverAt.Equal(want[0].DueAt) {
		t.Errorf("the task is due at %s, want %s, as returned by Next", task.DeliverAt, want[0].DueAt)
	}
}

// Next returns an error for an invalid timetable.
func TestNextOfAnInvalidTimetable(t *testing.T) {
	for _, s := range []rows.Schedule{{}, {Every: -time.Second}, {Every: time.Millisecond}, {Cron: "@daily", Every: time.Second}, {Cron: "odd"}} {
		list, err := Next(&s, time.Now(), 1)
		if _, ok := errors.AsType[*Error](err); !ok {
			t.Errorf("Next of %+v: got %v, want an *Error", s, err)
		}
		if list != nil {
			t.Errorf("Next of %+v: got the occurrences %v, want nil", s, list)
		}
	}
}

package timetable

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// match contains an expression and an independent implementation of its meaning.
type match struct {
	cron    string
	running bool // the expression matches minutes of every hour, so it does not name hours
	matches func(w time.Time) bool
}

var matches = []match{
	{"30 2 * * *", false, func(w time.Time) bool { return w.Hour() == 2 && w.Minute() == 30 }},
	{"0 2 * * *", false, func(w time.Time) bool { return w.Hour() == 2 && w.Minute() == 0 }},
	{"0 0 3 * * *", false, func(w time.Time) bool { return w.Hour() == 3 && w.Minute() == 0 }},
	{"*/15 2 * * *", false, func(w time.Time) bool { return w.Hour() == 2 && w.Minute()%15 == 0 }},
	{"59 1 * * *", false, func(w time.Time) bool { return w.Hour() == 1 && w.Minute() == 59 }},
	{"@daily", false, func(w time.Time) bool { return w.Hour() == 0 && w.Minute() == 0 }},
	{"15 23 * * sun", false, func(w time.Time) bool { return w.Hour() == 23 && w.Minute() == 15 && w.Weekday() == time.Sunday }},
	{"0 */2 * * *", false, func(w time.Time) bool { return w.Hour()%2 == 0 && w.Minute() == 0 }},
	{"0 8 1,15 * 1", false, func(w time.Time) bool {
		return w.Hour() == 8 && w.Minute() == 0 && (w.Day() == 1 || w.Day() == 15 || w.Weekday() == time.Monday)
	}},
	{"0 8 L * *", false, func(w time.Time) bool {
		return w.Hour() == 8 && w.Minute() == 0 && w.AddDate(0, 0, 1).Day() == 1
	}},
	{"0 8 * * MON#2", false, func(w time.Time) bool {
		return w.Hour() == 8 && w.Minute() == 0 && w.Weekday() == time.Monday && (w.Day()-1)/7 == 1
	}},
	{"@hourly", true, func(w time.Time) bool { return w.Minute() == 0 }},
	{"*/10 * * * *", true, func(w time.Time) bool { return w.Minute()%10 == 0 }},
	{"7 0-23 * * mon-fri", true, func(w time.Time) bool {
		return w.Minute() == 7 && w.Weekday() != time.Saturday && w.Weekday() != time.Sunday
	}},
}

// minutes contains the local time in a zone for each minute from a given time.
type minutes struct {
	from  time.Time
	shown []time.Time
}

func minutesOf(zone *time.Location, from, to time.Time) minutes {
	m := minutes{from: from}
	for t := from; t.Before(to); t = t.Add(time.Minute) {
		_, offset := t.In(zone).Zone()
		m.shown = append(m.shown, t.UTC().Add(time.Duration(offset)*time.Second))
	}
	return m
}

// expected returns the occurrences of an expression, found by checking every minute. If the expression names hours,
// each matching local minute occurs once: when the clock first shows it, or, if the clock skips it, when the clock
// first shows a later one.
func (z minutes) expected(m match) []time.Time {
	var list []time.Time
	next := z.shown[0] // the first minute of the calendar that has not been reached yet
	for i, shown := range z.shown {
		hit := m.running && m.matches(shown)
		for ; !m.running && !next.After(shown); next = next.Add(time.Minute) {
			hit = hit || m.matches(next)
		}
		if hit {
			list = append(list, z.from.Add(time.Duration(i)*time.Minute))
		}
	}
	return list
}

// The test covers two years in zones with all kinds of clock changes: by an hour at 1, 2 and 3 o'clock, by half an
// hour, at midnight, by a whole day, and none.
func TestCronInZones(t *testing.T) {
	for zone, year := range map[string]int{
		"Europe/Berlin": 2026, "America/New_York": 2026, "Europe/London": 2026, "Australia/Lord_Howe": 2026, "America/Sao_Paulo": 2017,
		"Pacific/Apia": 2011, "Africa/Cairo": 2024, "America/Santiago": 2026, "Asia/Kolkata": 2026, "UTC": 2026,
	} {
		t.Run(strings.ReplaceAll(zone, "/", " "), func(t *testing.T) {
			loc, err := time.LoadLocation(zone)
			if err != nil {
				t.Fatal(err)
			}
			// No zone changes its clocks at 12:00.
			from := time.Date(year, 1, 1, 12, 0, 0, 0, loc).UTC()
			to := from.AddDate(2, 0, 0)
			z := minutesOf(loc, from, to)
			for _, m := range matches {
				table, err := New(Rule{Cron: m.cron, Zone: loc})
				if err != nil {
					t.Fatal(err)
				}
				want := z.expected(m)
				var got []time.Time
				for at := table.Next(from.Add(-1)); at.Before(to); at = table.Next(at) {
					got = append(got, at)
				}
				if i := differ(got, want); i >= 0 {
					t.Errorf("New(%s): got %d occurrences, want %d; occurrence %d: got %s, want %s", m.cron, len(got), len(want), i, show(got, i, loc), show(want, i, loc))
				}
			}
		})
	}
}

// Next returns the same occurrences from any starting point.
func TestNextFromAnywhere(t *testing.T) {
	loc, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	for _, day := range []time.Time{time.Date(2026, 3, 28, 22, 0, 0, 0, time.UTC), time.Date(2026, 10, 24, 22, 0, 0, 0, time.UTC)} {
		z := minutesOf(loc, day.AddDate(0, 0, -1), day.AddDate(0, 2, 0))
		for _, m := range matches {
			table, err := New(Rule{Cron: m.cron, Zone: loc})
			if err != nil {
				t.Fatal(err)
			}
			all := z.expected(m)
			for at := day; at.Before(day.Add(8 * time.Hour)); at = at.Add(17*time.Second + 300*time.Millisecond) {
				i, _ := slices.BinarySearchFunc(all, at, func(a, b time.Time) int {
					if a.After(b) {
						return 1
					}
					return -1
				})
				if got := table.Next(at); !got.Equal(all[i]) {
					t.Fatalf("%s: Next(%s) = %s, want %s", m.cron, at.In(loc), got.In(loc), all[i].In(loc))
				}
			}
		}
	}
}

func differ(a, b []time.Time) int {
	for i := range max(len(a), len(b)) {
		if i >= len(a) || i >= len(b) || !a[i].Equal(b[i]) {
			return i
		}
	}
	return -1
}

func show(list []time.Time, i int, loc *time.Location) string {
	if i >= len(list) {
		return "none"
	}
	return list[i].In(loc).String()
}

func TestEvery(t *testing.T) {
	anchor := time.Date(2026, 3, 28, 23, 30, 0, 1, time.UTC) // rounded up to the next second
	table, err := New(Rule{Every: 90 * time.Minute, Anchor: anchor, End: anchor.Add(24 * time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	first := time.Date(2026, 3, 28, 23, 30, 1, 0, time.UTC)
	if got := table.Next(time.Time{}); !got.Equal(first) {
		t.Errorf("first occurrence: got %s, want %s", got, first)
	}
	n := 0
	for at := table.Next(first.Add(-1)); !at.IsZero(); at = table.Next(at) {
		if want := first.Add(time.Duration(n) * 90 * time.Minute); !at.Equal(want) {
			t.Fatalf("occurrence %d: got %s, want %s", n, at, want)
		}
		n++
	}
	if n != 16 {
		t.Errorf("one day of the timetable: got %d occurrences, want 16", n)
	}
}

func TestBounds(t *testing.T) {
	day := func(n int) time.Time { return time.Date(2026, 1, n, 8, 0, 0, 0, time.UTC) }
	table, err := New(Rule{Cron: "0 8 * * *", Zone: time.UTC, Start: day(5), End: day(9)})
	if err != nil {
		t.Fatal(err)
	}
	want := []time.Time{day(5), day(6), day(7), day(8)}
	var got []time.Time
	for at := table.Next(day(1)); !at.IsZero(); at = table.Next(at) {
		got = append(got, at)
	}
	if differ(got, want) >= 0 {
		t.Errorf("all occurrences from 1 January on: got %s, want %s", got, want)
	}
	if got := table.Latest(day(1), day(7), 2); differ(got, want[1:3]) >= 0 {
		t.Errorf("Latest with a limit of 2: got %s, want %s", got, want[1:3])
	}
	if got := table.Latest(day(1), day(30), 9); differ(got, want) >= 0 {
		t.Errorf("Latest with a limit of 9: got %s, want %s", got, want)
	}
	if got := table.Latest(day(6).Add(1), day(6).Add(2), 9); len(got) != 0 {
		t.Errorf("Latest between two occurrences: got %s, want none", got)
	}
}

// For any input, the parser neither panics nor searches for long, and Next returns a later time.
func FuzzCron(f *testing.F) {
	for _, m := range matches {
		f.Add(m.cron, int64(1_774_700_000))
	}
	zone, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text string, unix int64) {
		table, err := New(Rule{Cron: text, Zone: zone, Every: time.Second})
		if err != nil {
			return
		}
		after := time.Unix(unix%4_000_000_000, 0)
		for range 3 {
			next := table.Next(after)
			if !next.IsZero() && !next.After(after) {
				t.Fatalf("Next(%s) = %s, want a later time or none", after, next)
			}
			after = next
		}
	})
}

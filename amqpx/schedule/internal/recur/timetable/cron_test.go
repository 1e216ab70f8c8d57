package timetable

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// Like Vixie cron, New combines the day of the month and the weekday with AND if either field starts with a star, even
// one with a step, and otherwise with OR (crontab(5); DOM_STAR and DOW_STAR in entry.c).
func TestDaysAsVixie(t *testing.T) {
	odd := func(w time.Time) bool { return w.Day()%2 == 1 }
	is := func(days ...time.Weekday) func(w time.Time) bool {
		return func(w time.Time) bool {
			for _, d := range days {
				if w.Weekday() == d {
					return true
				}
			}
			return false
		}
	}
	mon := is(time.Monday)
	for days, want := range map[string]func(w time.Time) bool{
		"* * *":        func(time.Time) bool { return true },
		"* * mon":      mon,
		"13 * *":       func(w time.Time) bool { return w.Day() == 13 },
		"13 * mon":     func(w time.Time) bool { return w.Day() == 13 || mon(w) },
		"*/2 * *":      odd,
		"*/2 * mon":    func(w time.Time) bool { return odd(w) && mon(w) },
		"1-31/2 * mon": func(w time.Time) bool { return odd(w) || mon(w) },
		"*/1 * mon":    mon,
		"*/2,2 * mon":  func(w time.Time) bool { return (odd(w) || w.Day() == 2) && mon(w) },
		"2,*/2 * mon":  func(w time.Time) bool { return odd(w) || w.Day() == 2 || mon(w) },
		"1,* * mon":    func(time.Time) bool { return true },
		"13 * */2":     func(w time.Time) bool { return w.Day() == 13 && w.Weekday()%2 == 0 },
		"13 * */7":     func(w time.Time) bool { return w.Day() == 13 && w.Weekday() == time.Sunday },
		"13 * 0-7/2":   func(w time.Time) bool { return w.Day() == 13 || w.Weekday()%2 == 0 },
		"* * 5-7":      is(time.Friday, time.Saturday, time.Sunday),
		"1 * 7":        func(w time.Time) bool { return w.Day() == 1 || w.Weekday() == time.Sunday },
		"*/10 2 *":     func(w time.Time) bool { return w.Month() == time.February && w.Day()%10 == 1 },
		"? * THU":      is(time.Thursday), // in Quartz, ? means the same as a star
		"L * */2":      func(w time.Time) bool { return w.AddDate(0, 0, 1).Day() == 1 && w.Weekday()%2 == 0 },
	} {
		table, err := New(Rule{Cron: "30 6 " + days, Zone: time.UTC})
		if err != nil {
			t.Errorf("New with the days %s: got %v, want no error", days, err)
			continue
		}
		from := time.Date(2026, 1, 1, 6, 30, 0, 0, time.UTC)
		next := table.Next(from.Add(-1))
		for at := from; at.Year() < 2028; at = at.AddDate(0, 0, 1) {
			hit := next.Equal(at)
			if hit != want(at) {
				t.Errorf("days %q: match on %s: got %t, want %t", days, at.Format("Mon 2006-01-02"), hit, want(at))
				break
			}
			if hit {
				next = table.Next(at)
			}
		}
	}
}

// The error for an invalid expression says which part is wrong, what was expected there, and what to write instead.
func TestRefused(t *testing.T) {
	for text, want := range map[string]string{
		"":                                     "",
		"0 0 29 2 *":                           "",
		"0 0 LW * *":                           "",
		"0 0 * * FRI#L,THU#1":                  "",
		"0 0 12 ? * MON-FRI":                   "",
		"0 0 15 * 2":                           "",
		"0 0 * * 5#L,THU#1":                    `weekday "5#L": expected a weekday name with ?, L, W or #`,
		"0 0 12 ? * 2":                         `weekday "2": expected a weekday name with ?, L, W or #`,
		"0 0 12 ? * 2-6":                       `weekday "2-6": expected a weekday name`,
		"0 0 LW * 1":                           `weekday "1": expected a weekday name`,
		"0 0 * * sat,6L":                       `weekday "6L": expected a weekday name`,
		"* * * *":                              `expected 5 fields (minute hour day month weekday), 6 with seconds in front, or one of`,
		"* * * * * * *":                        `expected 5 fields`,
		"60 * * * *":                           `minute "60": expected 0 to 59, *, a range such as 2-5 or a step such as */5`,
		"0 60 * * * *":                         `minute "60"`,
		"60 0 * * * *":                         `second "60"`,
		"0 8,24 * * *":                         `hour "24": expected 0 to 23`,
		"0 0 32 * *":                           `day of month "32": expected 1 to 31, L, L-3, LW, 15W`,
		"0 0 1 13 *":                           `month "13": expected 1 to 12 or jan to dec`,
		"0 0 * * may":                          `weekday "may": expected 0 to 7 (Sunday is 0 and 7) or sun to sat, mon#2, fri#L`,
		"99999999999999999999 * * * *":         `minute "99999999999999999999": expected 0 to 59`,
		"*/60 * * * *":                         `minute "*/60": a step of 60 is not shorter than the range, so only the first minute would match; write 0 for that, or use an interval (every)`,
		"0 */24 * * *":                         `hour "*/24": a step of 24 is not shorter than the range, so only the first hour would match; write 0 for that`,
		"0 0 1 */12 *":                         `month "*/12": a step of 12 is not shorter than the range, so only the first month would match; write 1 for that`,
		"10-20/15 * * * *":                     `minute "10-20/15": a step of 15 is not shorter than the range, so only the first minute would match; write 10 for that`,
		"0 0 */31 * *":                         `day of month "*/31": a step of 31`,
		"*/x * * * *":                          `minute "*/x"`,
		"0 0 L/2 * *":                          `day of month "L/2": expected`,
		"*/0 * * * *":                          `minute "*/0"`,
		"1/2/3 * * * *":                        `minute "1/2/3"`,
		"0 0 * * 5L":                           `weekday "5L": expected a weekday name with ?, L, W or #, such as fri, mon-fri or fri#L for the last Friday`,
		"0 0 * * friL":                         `weekday "friL": the last weekday of the month is written with #; write fri#L`,
		"0 0 5L * *":                           `day of month "5L": expected 1 to 31, L, L-3`,
		"0 0 * * 5W":                           `weekday "5W"`,
		"0 0 * * mon#6":                        `weekday "mon#6"`,
		"H * * * *":                            `minute "H"`,
		"0 0 30 2 *":                           "no calendar day matches",
		"@every 5m":                            "@every is an interval",
		"TZ=UTC * * * * *":                     "the expression contains a time zone",
		"@reboot":                              `"@reboot" is unknown; expected @hourly`,
		strings.Repeat("1,", 600) + " * * * *": "1208 bytes, expected at most 1024",
	} {
		_, err := New(Rule{Cron: text, Zone: time.UTC, Every: time.Second})
		if want == "" && err != nil || want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)) {
			t.Errorf("New with %.50q: got the error %v\nwant the prefix %q (no error if empty)", text, err, want)
		}
		for _, foreign := range []string{"strconv", "Atoi", "option", "spec"} {
			if strings.Contains(fmt.Sprint(err), foreign) {
				t.Errorf("New with %.50q: got the error %v, want it without %q", text, err, foreign)
			}
		}
	}
}

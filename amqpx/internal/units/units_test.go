package units

import (
	"math"
	"testing"
	"time"
)

func TestInstant(t *testing.T) {
	const now = 1_795_913_972 // 2026-11-29
	seconds := "1970-01-21T18:51:53Z, which looks like seconds that were read as milliseconds; " +
		"was 2026-11-29T00:59:32Z meant, time.Unix(1795913972, 0) in Go?"
	millis := "the year 58880, which looks like milliseconds that were read as seconds; " +
		"was 2026-11-29T00:59:32Z meant, time.UnixMilli(1795913972000) in Go?"
	for name, x := range map[string]struct {
		at   time.Time
		want string
	}{
		"right":                        {time.Unix(now, 0), ""},
		"immediately":                  {time.UnixMilli(0), ""},
		"not set":                      {time.Time{}, ""},
		"before 1970":                  {time.Unix(-100, 0), ""},
		"a month ago":                  {time.Unix(now-30*86400, 0), ""},
		"before the first second":      {time.UnixMilli(firstSecond - 1), ""},
		"seconds as milliseconds":      {time.UnixMilli(now), seconds},
		"milliseconds as microseconds": {time.UnixMicro(now * 1000), seconds},
		"seconds as microseconds": {time.UnixMicro(now), "1970-01-01T00:29:55Z, which looks like seconds that were read as microseconds; " +
			"was 2026-11-29T00:59:32Z meant, time.Unix(1795913972, 0) in Go?"},
		"seconds as nanoseconds": {time.Unix(0, now), "1970-01-01T00:00:01Z, which looks like seconds that were read as nanoseconds; " +
			"was 2026-11-29T00:59:32Z meant, time.Unix(1795913972, 0) in Go?"},
		"the first minutes":            {time.Unix(lastSecond/1_000_000_000, 0), ""},
		"the second day":               {time.Unix(lastSecond/1_000_000, 0), ""},
		"March 1973":                   {time.UnixMilli(lastSecond), ""},
		"milliseconds as seconds":      {time.Unix(now*1000, 0), millis},
		"microseconds as milliseconds": {time.UnixMilli(now * 1_000_000), millis},
		"the year 10000":               {time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC), ""},
		"the end of time":              {time.Unix(math.MaxInt64, 0), ""},
		"the beginning of time":        {time.Unix(math.MinInt64, 0), ""},
	} {
		if got := Instant(x.at); got != x.want {
			t.Errorf("Instant, %s:\ngot  %q\nwant %q", name, got, x.want)
		}
	}
}

func TestDuration(t *testing.T) {
	const thirty = "30ns: a time.Duration counts nanoseconds; write 30*time.Second or 30*time.Millisecond"
	const back = "-30ns: a time.Duration counts nanoseconds; write -30*time.Second or -30*time.Millisecond"
	for d, want := range map[time.Duration]struct{ duration, shift string }{
		0: {}, time.Microsecond: {}, -time.Microsecond: {}, time.Second: {},
		30:  {thirty, thirty},
		-30: {"", back}, // callers of Duration reject negative durations themselves
	} {
		if got := Duration(d); got != want.duration {
			t.Errorf("Duration(%d) = %q, want %q", d, got, want.duration)
		}
		if got := Shift(d); got != want.shift {
			t.Errorf("Shift(%d) = %q, want %q", d, got, want.shift)
		}
	}
}

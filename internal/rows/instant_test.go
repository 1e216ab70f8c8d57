package rows

import (
	"database/sql"
	"math"
	"testing"
	"time"
)

// A time is written in milliseconds, rounded up so that no task is early. A time out of range is limited instead of
// overflowing.
func TestInstants(t *testing.T) {
	for name, x := range map[string]struct {
		at             time.Time
		millis, stored int64
	}{
		"a millisecond":        {time.UnixMilli(start), start, start},
		"a nanosecond more":    {time.UnixMilli(start).Add(1), start + 1, start + 1},
		"the last valid time":  {time.Date(9999, 12, 31, 23, 59, 59, 999e6, time.UTC), MaxDue, MaxDue},
		"the year 10000":       {time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC), MaxDue + 1, MaxDue + 1},
		"never":                {time.Unix(math.MaxInt64, 0), MaxDue + 1, MaxDue + 1},
		"the last time in ms":  {time.UnixMilli(math.MaxInt64), MaxDue + 1, MaxDue + 1},
		"before March 1973":    {time.UnixMilli(minDue - 1), 0, minDue - 1},
		"before 1970":          {time.Unix(-1, 0), 0, -1000},
		"the first time in ms": {time.UnixMilli(math.MinInt64), 0, -MaxDue},
		"the first time":       {time.Unix(math.MinInt64, 0), 0, -MaxDue},
		"the zero value":       {time.Time{}, 0, time.Time{}.UnixMilli()},
		"the first valid time": {time.UnixMilli(minDue), minDue, minDue},
	} {
		if got := Millis(x.at); got != x.millis {
			t.Errorf("Millis of %s = %d, want %d", name, got, x.millis)
		}
		if got := Stored(x.at); got != x.stored {
			t.Errorf("Stored of %s = %d, want %d", name, got, x.stored)
		}
	}
}

// Columns without a time are NULL or 0, and are read as the zero time.
func TestNoInstant(t *testing.T) {
	if got := orNull(time.Time{}); got != nil {
		t.Errorf("orNull of the zero time = %v, want nil", got)
	}
	if got := zeroOr(time.Time{}); got != 0 {
		t.Errorf("zeroOr of the zero time = %v, want 0", got)
	}
	want(t, "orNull", orNull(at(0)), "1800000000000")
	want(t, "zeroOr", zeroOr(at(0)), "1800000000000")
	for name, got := range map[string]time.Time{"orZero": orZero(sql.NullInt64{}), "orNever": orNever(0)} {
		if !got.IsZero() {
			t.Errorf("%s without a time: got %v, want the zero time", name, got)
		}
	}
	for name, got := range map[string]time.Time{"orZero": orZero(sql.NullInt64{Int64: start, Valid: true}), "orNever": orNever(start)} {
		if !got.Equal(at(0)) {
			t.Errorf("%s with a time: got %v, want %v", name, got, at(0))
		}
	}
}

// A duration is written in milliseconds, rounded up, and any number of milliseconds can be read.
func TestExpiresAfter(t *testing.T) {
	for d, column := range map[time.Duration]any{0: nil, -time.Second: nil, 1: int64(1), time.Second: int64(1000), time.Second + 1: int64(1001)} {
		if got := expiresAfter(d); got != column {
			t.Errorf("expiresAfter(%v) = %v, want %v", d, got, column)
		}
	}
	longest := time.Duration(math.MaxInt64).Truncate(time.Millisecond)
	for column, d := range map[int64]time.Duration{0: 0, 1500: 1500 * time.Millisecond, math.MaxInt64: longest} {
		if got := expiresAfterOf(sql.NullInt64{Int64: column, Valid: true}); got != d {
			t.Errorf("expiresAfterOf(%d) = %v, want %v", column, got, d)
		}
	}
}

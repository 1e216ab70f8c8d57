package rows

import (
	"database/sql"
	"math"
	"time"
)

// MaxDue is the end of the year 9999, the last time that every client can represent. minDue is in March 1973. The table
// rejects earlier times, because they probably come from programs that write seconds instead of milliseconds.
const (
	MaxDue = 253402300799999
	minDue = 100000000000
)

// farAway replaces an invalid time, so that it sorts after all valid times.
const farAway = MaxDue + 1

// Millis converts a due time to the value that is written. It rounds up, so that no task is early. A time before minDue
// becomes 0, which means immediately.
func Millis(t time.Time) int64 {
	if t.Unix() < minDue/1000 {
		return 0
	}
	return Stored(t)
}

// Stored converts a time that comes from a row, or that is compared with rows, to milliseconds, rounded up. The result
// is at most MaxDue + 1. Stored uses Unix, because a very distant time such as time.Unix(math.MaxInt64, 0) overflows
// when it is converted to milliseconds, and in comparisons of time.Time.
func Stored(t time.Time) int64 {
	if t.Unix() > MaxDue/1000 {
		return MaxDue + 1
	}
	if t.Unix() < -MaxDue/1000 {
		return -MaxDue
	}
	ms := t.UnixMilli()
	if t.Nanosecond()%int(time.Millisecond) > 0 {
		ms++
	}
	return ms
}

func orNull(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return Millis(t)
}

func orZero(ms sql.NullInt64) time.Time {
	if !ms.Valid {
		return time.Time{}
	}
	return time.UnixMilli(ms.Int64)
}

// expiresAfter returns the column value of Task.ExpiresAfter, rounded up.
func expiresAfter(d time.Duration) any {
	if d <= 0 {
		return nil
	}
	ms := d.Milliseconds()
	if d%time.Millisecond != 0 {
		ms++
	}
	return ms
}

// expiresAfterOf converts the column value to a duration, limited to the range of time.Duration.
func expiresAfterOf(ms sql.NullInt64) time.Duration {
	return time.Duration(min(ms.Int64, math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
}

package rows

import (
	"database/sql"
	"math"
	"time"
)

// MaxDue is the end of the year 9999, the last instant that every client can write
// down. An instant before minDue, in March 1973, is as past as any; the table refuses it
// from programs that write seconds instead of milliseconds.
const (
	MaxDue = 253402300799999
	minDue = 100000000000
)

// farAway stands for an instant that is none, so that it sorts behind all others.
const farAway = MaxDue + 1

// Millis is an instant as it is written. It rounds up, so that nothing is early.
func Millis(t time.Time) int64 {
	if t.Unix() < minDue/1000 {
		return 0
	}
	return Stored(t)
}

// Stored is an instant that was read from a row or is compared with rows. It is at most
// MaxDue + 1. It goes by Unix, because an instant that is very far away, such as
// time.Unix(math.MaxInt64, 0), overflows in its milliseconds and in time.Time itself.
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

// expiresAfter is the column of Task.ExpiresAfter, rounded up.
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

// expiresAfterOf is the duration of the column, at most what a Duration can hold.
func expiresAfterOf(ms sql.NullInt64) time.Duration {
	return time.Duration(min(ms.Int64, math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
}

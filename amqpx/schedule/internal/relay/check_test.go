package relay

import (
	"math"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/rows"
)

// Check rejects times after the year 9999. It accepts any time in the past.
func TestCheckInstants(t *testing.T) {
	for name, x := range map[string]struct {
		at       time.Time
		possible bool
	}{
		"never":                  {time.Unix(math.MaxInt64, 0), false},
		"the last in time":       {time.UnixMilli(math.MaxInt64), false},
		"the year 10000":         {time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC), false},
		"the end of 9999":        {time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC), true},
		"the first of all":       {time.Unix(math.MinInt64, 0), true},
		"the first milliseconds": {time.UnixMilli(math.MinInt64), true},
		"before 1970":            {time.Unix(-1, 0), true},
	} {
		err := Check(&rows.Task{Content: rows.Content{ID: "a", Queue: "q", DeliverAt: x.at}}, 1)
		if (err == nil) != x.possible {
			t.Errorf("%s: Check returned %v, want an error: %t", name, err, !x.possible)
		}
	}
}

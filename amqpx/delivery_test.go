package amqpx

import (
	"testing"
	"time"
)

// A due time of 0 means immediately. The message then counts as due since its task was written or, without a task,
// since it was sent.
func TestDueSince(t *testing.T) {
	due, created, sent := time.UnixMilli(1_800_000_000_000), time.UnixMilli(1_800_000_001_000), time.UnixMilli(1_800_000_002_000)
	for name, x := range map[string]struct {
		d    Delivery
		want time.Time
	}{
		"a due time":                        {Delivery{DueAt: due, Created: created, Timestamp: sent}, due},
		"no due time":                       {Delivery{Created: created, Timestamp: sent}, time.Time{}},
		"a task that is due immediately":    {Delivery{DueAt: time.UnixMilli(0), Created: created, Timestamp: sent}, created},
		"a message that is due immediately": {Delivery{DueAt: time.UnixMilli(0), Timestamp: sent}, sent},
	} {
		if got := x.d.DueSince(); !got.Equal(x.want) {
			t.Errorf("%s: DueSince returned %v, want %v", name, got, x.want)
		}
	}
}

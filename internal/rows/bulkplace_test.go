package rows

import (
	"slices"
	"testing"
	"time"
)

// FuzzBulkPlace checks that the place at which a bulk change continues is parsed exactly as it was printed, whatever
// ids it contains.
func FuzzBulkPlace(f *testing.F) {
	f.Add(int64(1767225600000), "order-42", "a", "b\"[")
	f.Add(int64(0), "", "x", "")
	f.Fuzz(func(t *testing.T, due int64, id, a, b string) {
		p := BulkPlace{Held: []string{}}
		if due > 0 && due < MaxDue && CheckID(id) == "" {
			p.Place = Place{DeliverAt: time.UnixMilli(due), ID: id}
		}
		for _, id := range []string{a, b} {
			if CheckID(id) == "" {
				p.Held = append(p.Held, id)
			}
		}
		if p.ID == "" && len(p.Held) == 0 {
			return
		}
		if got, err := ParseBulkPlace(p.String()); err != nil || got.Place != p.Place || !slices.Equal(got.Held, p.Held) {
			t.Errorf("ParseBulkPlace(%q): got %+v, error %v, want %+v and no error", p.String(), got, err, p)
		}
	})
}

package schedule

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
)

func TestShares(t *testing.T) {
	for _, c := range []struct {
		n         int
		got, most []int
		want      []int
	}{
		{10, nil, nil, []int{}},
		{10, []int{0}, []int{100}, []int{10}},
		{10, []int{0}, []int{3}, []int{3}},
		{10, []int{0, 0}, []int{100, 100}, []int{5, 5}},
		{11, []int{0, 0}, []int{100, 100}, []int{6, 5}},
		{10, []int{0, 0}, []int{2, 100}, []int{2, 8}},
		{10, []int{0, 0, 0, 0}, []int{100, 1, 100, 2}, []int{4, 1, 3, 2}},
		{2, []int{0, 0, 0}, []int{9, 9, 9}, []int{1, 1, 0}},
		{10, []int{0, 0}, []int{0, 9}, []int{0, 9}},
		{4, []int{5, 3, 0}, []int{9, 9, 0}, []int{1, 3, 0}},
		{2, []int{1, 1, 0, 0}, []int{9, 9, 9, 9}, []int{0, 0, 1, 1}},
	} {
		if got := shares(c.n, c.got, c.most); !slices.Equal(got, c.want) {
			t.Errorf("%d among %v after %v: %v, expected %v", c.n, c.most, c.got, got, c.want)
		}
	}
}

// Shares exceed neither what there is nor a wish, leave nothing that anybody
// wanted, and nobody who wanted more has less than another.
func TestSharesAreFair(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 50).Draw(t, "n")
		most := rapid.SliceOfN(rapid.IntRange(0, 20), 0, 10).Draw(t, "most")
		had := rapid.SliceOfN(rapid.IntRange(0, 20), len(most), len(most)).Draw(t, "had")
		got := shares(n, had, most)
		sum, wanted := 0, 0
		for i := range most {
			sum += got[i]
			wanted += most[i]
			if got[i] < 0 || got[i] > most[i] {
				t.Fatalf("%d of at most %d", got[i], most[i])
			}
			for j := range most {
				if got[i] < most[i] && got[j] > 0 && had[j]+got[j] > had[i]+got[i]+1 {
					t.Fatalf("%v among %v: lane %d could have more", got, most, i)
				}
			}
		}
		if sum != min(n, wanted) {
			t.Fatalf("%d of %d are divided among %v", sum, n, most)
		}
	})
}

func TestWithinBytes(t *testing.T) {
	for _, c := range []struct {
		bytes int64
		picks []pick
		want  []pick
	}{
		{10, nil, nil},
		{10, []pick{{0, "a", 11}}, []pick{{0, "a", 11}}},
		{10, []pick{{0, "a", 4}, {0, "b", 4}, {0, "c", 4}, {0, "d", 1}}, []pick{{0, "a", 4}, {0, "b", 4}}},
		{10, []pick{{0, "a", 4}, {0, "b", 4}, {1, "c", 4}}, []pick{{0, "a", 4}, {1, "c", 4}}},
		{10, []pick{{0, "a", 9}, {1, "b", 2}, {2, "c", 1}, {2, "d", 0}}, []pick{{0, "a", 9}, {2, "c", 1}, {2, "d", 0}}},
		{10, []pick{{0, "a", 11}, {1, "b", 1}}, []pick{{0, "a", 11}}},
	} {
		if got := within(c.bytes, c.picks); !slices.Equal(got, c.want) {
			t.Errorf("%d bytes of %v: %v, expected %v", c.bytes, c.picks, got, c.want)
		}
	}
}

// Large bodies make small batches, which follow each other without a pause.
func TestClaimsAreBoundedByBytes(t *testing.T) {
	var largest, bodies int
	r := recorder{before: func(_ context.Context, msgs []amqpx.Message) error {
		size := 0
		for _, m := range msgs {
			size += len(m.Body)
		}
		if len(msgs) > 1 && size > 100<<10 {
			t.Errorf("%d tasks of %d bytes at once", len(msgs), size)
		}
		largest, bodies = max(largest, size), bodies+len(msgs)
		return nil
	}}
	bubble(t, &r, Config{BatchBytes: 100 << 10, Workers: 1}, func(t *testing.T, s *Store, _ *sql.DB) {
		tasks := make([]Task, 100)
		for i := range tasks {
			tasks[i] = near(fmt.Sprint(i))
			tasks[i].Body = make([]byte, 10<<10)
		}
		tasks[50].Body = make([]byte, 300<<10)
		check(t, s.ScheduleBatch(t.Context(), nil, tasks))
		<-time.After(firstLook)
		synctest.Wait()
		if largest != 300<<10 || bodies != len(tasks) {
			t.Errorf("%d sent, at most %d bytes at once", bodies, largest)
		}
		for _, c := range r.receipts() {
			if c.m.ID == "50" && len(c.m.Body) != 300<<10 {
				t.Error("the largest one is cut")
			}
		}
	})
}

// A lane with a backlog leaves the others their share, uses what they leave, and
// more lanes than a batch has rows take turns.
func TestClaimsAreShared(t *testing.T) {
	s, db := openStore(t, &recorder{}, Config{Batch: 10})
	defer func() { _ = db.Close() }()
	now := time.Now()
	add := func(queue string, n int, at time.Time) {
		for i := range n {
			check(t, s.Schedule(t.Context(), nil, Task{ID: fmt.Sprint(queue, i), Queue: queue, DeliverAt: at}))
		}
	}
	take := func() map[string]int {
		got := map[string]int{}
		list, err := s.take(t.Context())
		check(t, err)
		for _, c := range list {
			got[c.Queue]++
		}
		return got
	}
	add("long", 40, now.Add(-time.Hour))
	add("short", 2, now)
	check(t, s.Schedule(t.Context(), nil, Task{ID: "e", Exchange: "events", RoutingKey: "a.b", DeliverAt: now}))
	if got := take(); got["long"] != 7 || got["short"] != 2 || got[""] != 1 {
		t.Errorf("claimed %v, expected 7 long, 2 short and the exchange's", got)
	}
	for i := range 15 {
		add(fmt.Sprint("many-", i), 2, now)
	}
	first, second := take(), take()
	if len(first) != 10 || len(second) != 10 {
		t.Errorf("claimed of %d and %d lanes, expected 10 each", len(first), len(second))
	}
	for i := range 15 {
		if q := fmt.Sprint("many-", i); first[q]+second[q] == 0 {
			t.Errorf("%s had no turn", q)
		}
	}
}

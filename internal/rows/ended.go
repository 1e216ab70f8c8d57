package rows

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// Ends counts the tasks that ended within one time span, by status and lateness.
type Ends struct {
	Done, Failed int64
	Retries      int64   // attempts after the first
	Late         []int64 // the done tasks by lateness: one count for each of LateBounds, and one for everything above
}

// LateBounds are the upper bounds of the histogram of lateness: every millisecond from 1 to 9 ms, then twelve bounds
// for each power of ten, up to 100,000 s.
var LateBounds = lateBounds()

func lateBounds() (list []time.Duration) {
	for ms := range 9 {
		list = append(list, time.Duration(ms+1)*time.Millisecond)
	}
	for unit := time.Millisecond; unit < 10_000*time.Second; unit *= 10 {
		for _, n := range []int64{10, 12, 15, 18, 22, 27, 33, 39, 47, 56, 68, 82} {
			list = append(list, time.Duration(n*int64(unit)))
		}
	}
	return append(list, 100_000*time.Second)
}

// lateClass is the SQL expression for the index in LateBounds of the column late.
var lateClass = func() string {
	var b strings.Builder
	b.WriteString("CASE")
	for i, bound := range LateBounds {
		fmt.Fprintf(&b, " WHEN late <= %d THEN %d", bound.Milliseconds(), i)
	}
	fmt.Fprintf(&b, " ELSE %d END", len(LateBounds))
	return b.String()
}()

// lateness is the SQL expression for the lateness of a finished row. If due_at is 0, which means immediately, it is
// measured from the time when the row was written.
const lateness = "finished_at - CASE WHEN due_at = 0 THEN created_at ELSE due_at END"

// Ended counts the tasks that ended in each of n consecutive spans of step milliseconds, the first of which begins at
// start.
func (c Conn) Ended(ctx context.Context, start, step int64, n int) ([]Ends, error) {
	spans := make([]Ends, n)
	for i := range spans {
		spans[i].Late = make([]int64, len(LateBounds)+1)
	}
	read := func(status, class, retries string, row func(e *Ends, class int, count int64)) error {
		// Subtract the remainder first, because / is not an integer division in MySQL.
		number := fmt.Sprintf("((finished_at - %d) - (finished_at - %d) %% %d) / %d", start, start, step, step)
		query := fmt.Sprintf("SELECT number, %s AS class, COUNT(*), SUM(%s) FROM (SELECT %s AS number, %s AS late, attempts FROM %s WHERE status = '%s' AND finished_at >= ? AND finished_at < ?) AS ended GROUP BY number, class",
			class, retries, number, lateness, c.tasksBy("finished", ""), status)
		return c.each(ctx, query, []any{start, start + int64(n)*step}, func(scan scanner) error {
			var i float64 // MySQL returns the quotient as a decimal, such as 3.0000
			var class int
			var count, retries int64
			if err := scan(&i, &class, &count, &retries); err != nil {
				return err
			}
			e := &spans[min(max(int(i), 0), n-1)]
			e.Retries += retries
			row(e, class, count)
			return nil
		})
	}
	err := read(Done, lateClass, "attempts", func(e *Ends, class int, count int64) {
		e.Done += count
		e.Late[class] += count
	})
	if err != nil {
		return nil, err
	}
	return spans, read(Failed, "0", "CASE WHEN attempts > 1 THEN attempts - 1 ELSE 0 END", func(e *Ends, _ int, count int64) { e.Failed += count })
}

// CountRetried counts the pending tasks that have failed at least once and are due to be tried again. It reads at most
// the given number of due tasks, beginning with the earliest.
func (c Conn) CountRetried(ctx context.Context, now, most int64) (int64, error) {
	return c.number(ctx, "SELECT COUNT(*) FROM (SELECT attempts"+c.pendingInOrder()+" AND due_at <= ? ORDER BY due_at LIMIT ?) AS due WHERE attempts > 0", now, most)
}

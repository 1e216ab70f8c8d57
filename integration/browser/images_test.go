package browser

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/integration/binary"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
)

var update = flag.Bool("update", false, "take the README's screenshots of the console again")

// images is the directory of the README's images.
const images = "../../docs/images"

// TestImages takes screenshots of a console with a day's tasks and messages.
func TestImages(t *testing.T) {
	if !*update {
		t.Skip("skipped: set -update to take the README's screenshots again")
	}
	s := shared(t, "strategy: bucket")
	s.live24(t)
	b := s.open(t, "anna")
	take := func(name, path, scheme string, width, height int64) {
		b.window(width, height, 1, scheme)
		b.visit(path)
		b.do(chromedp.Sleep(time.Second)) // until the live parts of the page are loaded
		png, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
		if err == nil {
			err = os.WriteFile(filepath.Join(images, name), png, 0o644)
		}
		if err != nil {
			t.Error(err)
		}
	}
	if err := os.MkdirAll(images, 0o755); err != nil {
		t.Fatal(err)
	}
	b.visit("")
	b.becomes("the page shows a verdict", `document.querySelector(".verdict h2") !== null`)
	// The console stores the history of each minute only once, and may have done so before all of these tasks existed.
	// Deleting the history makes it read the tasks again, at its next update within a minute.
	forget := func() {
		if _, err := s.db.ExecContext(t.Context(), "DELETE FROM rabbitdelay_history"); err != nil {
			t.Fatal(err)
		}
	}
	forget()
	suite.Within(t, 5*time.Minute, "the page counts all of these tasks", func() bool {
		var minutes, done int
		const kept = "SELECT COUNT(*), COALESCE(SUM(done), 0) FROM rabbitdelay_history WHERE width_ms = 60000"
		if err := s.db.QueryRowContext(t.Context(), kept).Scan(&minutes, &done); err != nil {
			return false
		}
		if minutes >= 50 && done < 2500 {
			forget()
		}
		shown, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool](`/Done \(last hour\)\s+2,[5-9]\d\d/.test(document.body.innerText)`))
		return err == nil && shown
	})
	take("console-now.png", "", "light", 1200, 1180)
	take("console-tasks.png", "tasks?status=failed", "dark", 1200, 640)
	take("console-bulk.png", "bulk?action=reschedule-by&by=2h&queue=mail&status=pending", "light", 1200, 420)
	take("console-phone.png", "", "dark", 390, 840)
}

// live24 creates tasks that are due in the next year, tasks that were done in the last hour, and messages in delay
// queues.
func (s *site) live24(t *testing.T) {
	now := time.Now()
	random := rand.New(rand.NewPCG(1, 2))
	tasks := make([]schedule.Task, 0, 6000)
	for i := range 6000 {
		ahead := time.Duration(float64(30*time.Minute) * (1 + 100*random.Float64()*random.Float64()*random.Float64()))
		if i%5 == 0 {
			ahead = time.Duration(random.Float64() * float64(200*24*time.Hour))
		}
		queue, tag := "mail", "campaign-7"
		if i%3 == 0 {
			queue, tag = "orders", "tenant-12"
		}
		tasks = append(tasks, schedule.Task{
			ID: fmt.Sprintf("%s-%d", queue, 10_000+i), Queue: queue, DeliverAt: now.Add(ahead), Tags: []string{tag},
			Body: []byte("{}"),
		})
	}
	if err := s.store.ScheduleBatch(t.Context(), s.db, tasks); err != nil {
		t.Fatal(err)
	}
	for i := range 3000 {
		finished := now.Add(-time.Duration(random.Float64() * float64(time.Hour))).UnixMilli()
		late := int64(6 + 12*random.Float64()*random.Float64())
		if i%90 == 0 {
			late += 25
		}
		const done = "INSERT INTO rabbitdelay_tasks (id, queue, due_at, status, body, created_at, updated_at, finished_at) VALUES (?, 'mail', ?, 'done', '', ?, ?, ?)"
		if _, err := s.db.ExecContext(t.Context(), done, fmt.Sprintf("done-%d", i), finished-late, finished-60_000, finished, finished); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 40 {
		finished := now.Add(-time.Duration(random.Float64() * random.Float64() * float64(20*time.Hour))).UnixMilli()
		why := []string{
			"smtp: 451 4.3.2 mx1.example.org: system not accepting network messages, try again later",
			"POST https://api.example.com/v1/charges: 503 Service Unavailable", "order 10492: no such customer",
		}[i%3]
		const failed = "INSERT INTO rabbitdelay_tasks (id, queue, due_at, status, body, attempts, last_error, created_at, " +
			"updated_at, finished_at) VALUES (?, ?, ?, 'failed', '', ?, ?, ?, ?, ?)"
		if _, err := s.db.ExecContext(t.Context(), failed,
			fmt.Sprintf("%s-%d", []string{"mail", "orders"}[i%2], 9000+i), []string{"mail", "orders"}[i%2],
			finished-3_600_000, 5, why, finished-7_200_000, finished, finished); err != nil {
			t.Fatal(err)
		}
	}
	s.die(t, "mail", "mail-8812", "mail-8813", "mail-8819")
	for _, x := range [][3]string{{"60", "2s", "58s"}, {"900", "2m", "58m"}, {"700", "1h", "22h"}, {"500", "1d", "28d"}, {"40", "33d", "200d"}} {
		args := []string{"send", "--queue", "orders", "--count", x[0], "--delay", x[1], "--spread", x[2], "-f", s.file}
		if got := binary.Run(context.WithoutCancel(t.Context()), args...); got.Code != 0 {
			t.Fatalf("rabbitdelay %v: got %v, want exit code 0", args, got)
		}
	}
}

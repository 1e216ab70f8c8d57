package tasks_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
)

// The console's statements run on every database and return correct counts.
func TestConsoleOnEveryDatabase(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db businessDB) {
		s := newStore(t, db, nil, schedule.Config{})
		now := time.Now()
		var tasks []schedule.Task
		for i := range 60 {
			tasks = append(tasks, schedule.Task{ID: "t" + string(rune('A'+i)), Queue: "q", DeliverAt: now.Add(time.Duration(i-9) * time.Hour), Tags: []string{"blue"}})
		}
		suite.MustSucceed(t, s.ScheduleBatch(t.Context(), schedule.NoTx, tasks))
		db.mustExec(t, "UPDATE rabbitdelay_tasks SET status = 'done', finished_at = ?, due_at = ? WHERE id = 'tA'",
			now.Add(-time.Minute).UnixMilli(), now.Add(-time.Minute-250*time.Millisecond).UnixMilli())
		site := startServing(t, db, "--no-relay")
		ask := func(method, path, body string) map[string]any {
			t.Helper()
			code, out := site.ask(method, "/api/v1"+path, body)
			if code != http.StatusOK {
				t.Fatalf("%s %s: got %d %v, want 200", method, path, code, out)
			}
			return out
		}
		for path, want := range map[string]float64{
			"/counts": 60, "/counts?status=pending": 59, "/counts?queue=q&status=pending&due_to=now": 9,
			"/counts?tag=blue&up_to=10": 10, "/counts?header=a%3Db": 0, "/counts?id_prefix=tA": 1,
		} {
			if got := ask("GET", path, ""); got["count"] != want || got["more"] != (want == 10) {
				t.Errorf("%s: got %v, want %v", path, got, want)
			}
		}
		sum := func(h map[string]any) (n float64) {
			for _, b := range h["bins"].([]any) {
				n += b.(map[string]any)["count"].(float64)
			}
			return n + h["before"].(float64) + h["after"].(float64)
		}
		for _, path := range []string{"/histogram", "/histogram?from=now&to=1d&bins=7", "/histogram?queue=q&tag=blue&from=-1d&to=7d&bins=240"} {
			if n := sum(ask("GET", path, "")); n != 59 {
				t.Errorf("%s: the counts add up to %v, want 59", path, n)
			}
		}
		job := func(body string) map[string]any {
			t.Helper()
			id := ask("POST", "/tasks/bulk", body)["job"].(map[string]any)["id"].(string)
			var j map[string]any
			suite.Eventually(t, "the job is no longer running", func() bool {
				j = ask("GET", "/jobs/"+id, "")
				return j["state"] != "running"
			})
			return j
		}
		for _, x := range []struct {
			body string
			done float64
		}{
			{`{"action":"reschedule-by","by":"-30m","filter":{"queue":"q"},"count":20}`, 20},
			{`{"action":"reschedule-by","by":"2d","filter":{"queue":"q"},"count":100}`, 59},
			{`{"action":"reschedule","to":"3d","spread":"1h","filter":{"tag":"blue","due_to":"2d"},"count":100}`, 9},
			{`{"action":"run","filter":{"id_prefix":"tB"},"count":5}`, 1},
			{`{"action":"cancel","filter":{"status":"pending","queue":"q"},"count":7}`, 7},
			{`{"action":"delete","filter":{},"all":true,"count":100}`, 8},
			{`{"action":"revive","filter":{},"all":true,"count":100}`, 0},
		} {
			if j := job(x.body); j["state"] != "done" || x.done != j["done"].(float64) {
				t.Errorf("%s: got %v, want %v", x.body, j, x.done)
			}
		}
		if list := ask("GET", "/jobs?limit=3", "")["jobs"].([]any); len(list) != 3 {
			t.Errorf("jobs?limit=3: got %d jobs, want 3: %v", len(list), list)
		}
		page := ask("GET", "/audit?limit=5", "")
		if older := ask("GET", "/audit?before="+page["next"].(string), "")["entries"].([]any); len(page["entries"].([]any)) != 5 || len(older) != 2 {
			t.Errorf(`audit: got %v, then %v, want 5 entries, then 2`, page, older)
		}
	})
}

// A PUT with a cooldown that waits for a running handler is refused. It leaves no row, so that the same PUT creates the
// task after the cooldown. Every answer has an outcome.
func TestPutWithACooldown(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db businessDB) {
		s := newStore(t, db, nil, schedule.Config{})
		site := startServing(t, db, "--no-relay")
		put := func(id string) string {
			code, out := site.ask("PUT", "/api/v1/tasks/"+id, `{"queue":"q","due":"1s","unique":{"key":"k","cooldown":"1h"}}`)
			return fmt.Sprint(code, " ", out["id"], " ", out["created"], " ", out["outcome"])
		}
		want := func(when, got, want string) {
			t.Helper()
			if got != want {
				t.Errorf("%s: got %q, want %q", when, got, want)
			}
		}
		rows := func() (list []string) {
			for task, err := range s.List(t.Context(), schedule.NoTx, schedule.Filter{}) {
				suite.MustSucceed(t, err)
				list = append(list, task.ID+" "+string(task.Status))
			}
			slices.Sort(list)
			return list
		}
		want("the first PUT", put("first"), "201 first true created")
		answer := make(chan string, 1)
		handle := db.taskHandler(func(context.Context, schedule.Executor, *amqpx.Delivery) error {
			go func() { answer <- put("second") }()
			<-time.After(300 * time.Millisecond) // so that it most likely waits; the outcome is the same if not
			return nil
		})
		first := taskOf(t, s, "first")
		suite.MustSucceed(t, handle(t.Context(), &amqpx.Delivery{ID: "first", Queue: "q", Version: first.Version, DueAt: first.DeliverAt}))
		want("a PUT while the task is handled", <-answer, "200 first false refused")
		want("a PUT in the cooldown", put("second"), "200 first false refused")
		want("the tasks in the cooldown", fmt.Sprint(rows()), "[first done]")
		db.mustExec(t, "UPDATE rabbitdelay_tasks SET finished_at = finished_at - 3600001")
		want("a PUT after the cooldown", put("second"), "201 second true created")
		want("the same PUT again", put("second"), "200 second false kept")
		want("the tasks after the cooldown", fmt.Sprint(rows()), "[first done second pending]")
	})
}

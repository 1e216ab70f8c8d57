package console

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console/service"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

const many = 20_000 / slowdown

// fill schedules many tasks that are due at the same time.
func (w *world) fill() time.Time {
	w.t.Helper()
	due := time.Now().Add(time.Hour).Truncate(time.Second)
	for from := 0; from < many; from += 1000 {
		var tasks []schedule.Task
		for i := range 1000 {
			tasks = append(tasks, schedule.Task{ID: fmt.Sprintf("t%05d", from+i), Queue: "orders", DeliverAt: due.Add(time.Duration(from+i) * time.Millisecond)})
		}
		check(w.t, w.store.ScheduleBatch(w.t.Context(), schedule.NoTx, tasks))
	}
	return due
}

// movedOnce fails the test unless each task was rescheduled exactly once, by an hour.
func (w *world) movedOnce(due time.Time) {
	w.t.Helper()
	n, wrong := 0, 0
	for task, err := range w.store.List(w.t.Context(), schedule.NoTx, schedule.Filter{WithoutBody: true}) {
		check(w.t, err)
		var i int
		_, err = fmt.Sscanf(task.ID, "t%d", &i)
		check(w.t, err)
		if n++; task.Version != 2 || !task.DeliverAt.Equal(due.Add(time.Hour+time.Duration(i)*time.Millisecond)) {
			if wrong++; wrong < 5 {
				w.t.Errorf("task %s has version %d and is due at %v, want version 2 and its original due time plus 1h", task.ID, task.Version, task.DeliverAt)
			}
		}
	}
	if n != many || wrong > 0 {
		w.t.Errorf("got %d tasks, of which %d were not rescheduled exactly once, want %d and 0", n, wrong, many)
	}
}

// begun starts a job that reschedules all tasks, waits until it has changed some, and returns its id.
func (w *world) begun() string {
	w.t.Helper()
	out := w.must(200, "POST", "/api/v1/tasks/bulk", `{"action":"reschedule-by","by":"1h","filter":{"queue":"orders"},"count":20000}`)
	id := out["job"].(map[string]any)["id"].(string)
	for deadline := time.Now().Add(time.Minute); ; {
		j := w.must(200, "GET", "/api/v1/jobs/"+id, "")
		if j["done"].(float64) > 0 {
			if j["state"] != "running" {
				w.t.Fatalf(`the job has finished too early: got %v, want state = "running"`, j)
			}
			return id
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("the job has not changed any task by the deadline: %v", j)
		}
	}
}

// newWorldOn returns a console that acts like another process on the same database.
func newWorldOn(t *testing.T, w *world) *world {
	t.Helper()
	other := *w
	var err error
	other.c, err = New(w.cfg)
	check(t, err)
	t.Cleanup(func() { _ = other.c.Close(context.Background()) })
	other.server, other.client = serveInMemory(other.c)
	t.Cleanup(other.server.Close)
	return &other
}

// If the process of a job exits, another process can continue the job, and each task is rescheduled once.
func TestJobIsContinued(t *testing.T) {
	w := newWorld(t)
	due := w.fill()
	id := w.begun()
	other := newWorldOn(t, w)
	check(t, w.c.Close(t.Context()))
	j := other.must(200, "GET", "/api/v1/jobs/"+id, "")
	if j["state"] != "interrupted" || j["done"].(float64) >= many {
		t.Fatalf(`after the job's process has exited: got %v, want state = "interrupted" and done < %v`, j, many)
	}
	j = other.must(200, "POST", "/api/v1/jobs/"+id+"/continue", "")
	if j = other.finished(j); j["state"] != "done" || j["done"] != float64(many) {
		t.Errorf(`continued: got %v, want state = "done" and done = %v`, j, float64(many))
	}
	other.movedOnce(due)
}

// If the heartbeats of a job's process are late, another process can take over the job, and the first process stops
// working on it.
func TestJobIsTakenOver(t *testing.T) {
	w := newWorld(t)
	due := w.fill()
	other := newWorldOn(t, w)
	// quiet runs statements that suppress the heartbeats of the process, or restore them.
	quiet := func(how string) {
		_, err := w.db.ExecContext(t.Context(), how)
		check(t, err)
	}
	id := w.begun()
	if r := other.ask("POST", "/api/v1/jobs/"+id+"/continue", ""); r.code != 409 || !strings.Contains(string(r.text), "is running") {
		t.Fatalf(`continuing a running job: got %d %s, want 409 and "is running" in it`, r.code, r.text)
	}
	quiet("CREATE TRIGGER quiet AFTER UPDATE OF alive_at ON rabbitdelay_audit WHEN new.alive_at > 0 " +
		"BEGIN UPDATE rabbitdelay_audit SET alive_at = 0 WHERE id = new.id; END")
	quiet("UPDATE rabbitdelay_audit SET alive_at = 0")
	if r := other.ask("POST", "/api/v1/jobs/"+id+"/continue", ""); r.code != 200 {
		t.Fatalf("continuing a job without heartbeats: got %d %s, want 200", r.code, r.text)
	}
	quiet("DROP TRIGGER quiet")
	quiet("UPDATE rabbitdelay_audit SET alive_at = CAST(unixepoch('subsec') * 1000 AS INTEGER)")
	if j := other.finished(map[string]any{"id": id}); j["state"] != "done" || j["done"] != float64(many) {
		t.Errorf(`taken over: got %v, want state = "done" and done = %v`, j, float64(many))
	}
	check(t, w.c.Close(t.Context()))
	other.movedOnce(due)
}

// The audit log of a task contains exactly the bulk changes that changed the task, whichever filter selected it, even
// after the task was deleted.
func TestAuditOfATaskHasItsBulkChanges(t *testing.T) {
	w := newWorld(t)
	for _, id := range []string{"a-1", "a-2", "b-1"} {
		w.must(201, "PUT", "/api/v1/tasks/"+id, `{"queue":"orders.expire","due":"1h"}`)
	}
	bulk := func(what, filter string, count int) {
		j := w.must(200, "POST", "/api/v1/tasks/bulk", fmt.Sprintf(`{"action":%s,"filter":%s,"count":%d}`, what, filter, count))
		w.finished(j["job"].(map[string]any))
	}
	bulk(`"cancel"`, `{"id_prefix":"a-"}`, 2)
	bulk(`"delete"`, `{"id_prefix":"a-"}`, 2)
	bulk(`"reschedule-by","by":"1h"`, `{"status":"pending"}`, 1)
	for id, want := range map[string][]string{
		"a-1": {"bulk.delete", "bulk.cancel", "task.schedule"}, "a-2": {"bulk.delete", "bulk.cancel", "task.schedule"},
		"b-1": {"bulk.reschedule-by", "task.schedule"}, "c": nil,
	} {
		var got []string
		for _, e := range w.must(200, "GET", "/api/v1/audit?target="+id, "")["entries"].([]any) {
			got = append(got, e.(map[string]any)["action"].(string))
		}
		if !slices.Equal(got, want) {
			t.Errorf("audit log of task %s: got %q, want %q", id, got, want)
		}
	}
}

// Any process can stop a job and continue it where it was stopped.
func TestJobIsStopped(t *testing.T) {
	w := newWorld(t)
	due := w.fill()
	other := newWorldOn(t, w)
	// Each transaction takes longer than a writer pauses between two attempts to lock the database file.
	for _, statement := range []string{
		"CREATE VIEW slow AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < 300000) SELECT max(i) AS i FROM n",
		"CREATE TRIGGER slow AFTER UPDATE ON rabbitdelay_tasks WHEN OLD.id LIKE '%00' BEGIN SELECT i FROM slow; END",
	} {
		_, err := w.db.ExecContext(t.Context(), statement)
		check(t, err)
	}
	id := w.begun()
	j := other.must(200, "POST", "/api/v1/jobs/"+id+"/stop", "")
	if j["state"] != "stopped" {
		t.Fatalf(`stopped: got %v, want state = "stopped"`, j)
	}
	check(t, w.c.Close(t.Context())) // waits for the work in progress
	at := other.must(200, "GET", "/api/v1/jobs/"+id, "")["done"].(float64)
	moved, err := w.store.CountUpTo(t.Context(), schedule.NoTx, schedule.Filter{DueFrom: due.Add(time.Hour)}, 0)
	check(t, err)
	if at == 0 || at >= many || int64(at) != moved {
		t.Errorf("the job reports %v moved tasks, want the number in the store, %d, between 1 and %d", at, moved, many-1)
	}
	_, err = w.db.ExecContext(t.Context(), "DROP TRIGGER slow")
	check(t, err)
	other.must(200, "POST", "/api/v1/jobs/"+id+"/continue", "")
	if j = other.finished(j); j["state"] != "done" {
		t.Errorf(`continued: got %v, want state = "done"`, j)
	}
	other.movedOnce(due)
	if r := other.ask("POST", "/api/v1/jobs/"+id+"/stop", ""); r.code != 409 || !strings.Contains(string(r.text), "is done; expected a running job") {
		t.Errorf(`stopping a job that is done: got %d %s, want 409 and "is done; expected a running job" in it`, r.code, r.text)
	}
	var actions []string
	entries, err := other.c.core.Audit(t.Context(), service.Identity{}, id, "", 10)
	check(t, err)
	for _, e := range entries {
		actions = append(actions, e.Action)
	}
	if got := strings.Join(actions, " "); got != "job.stop job.continue job.stop" {
		t.Errorf("the audit log of the job: got the actions %s, want job.stop job.continue job.stop", got)
	}
}

// requeues starts a requeue job with the limit most and the given rate, and waits until some messages were sent.
func (w *world) requeues(most int, rate float64) (job service.Job, went func() int) {
	w.t.Helper()
	conn, err := w.broker.Connect()
	check(w.t, err)
	defer conn.Close()
	ch, err := conn.Channel()
	check(w.t, err)
	for _, q := range []string{"orders", "lying"} {
		_, err = ch.QueueDeclare(q, true, false, false, false, nil)
		check(w.t, err)
	}
	for i := range 2 * most {
		check(w.t, ch.PublishWithContext(w.t.Context(), "", "lying", true, false, amqp.Publishing{MessageId: fmt.Sprint(i)}))
	}
	// The broker answers after it has received what was published on the channel before.
	_, err = ch.QueueDeclarePassive("lying", true, false, false, false, nil)
	check(w.t, err)
	went = func() int {
		q, _ := w.broker.Queue("orders")
		return q.Ready
	}
	job, err = w.c.core.Requeue(w.t.Context(), anna, service.Requeue{Queue: "lying", To: topology.Destination{Queue: "orders"}, Limit: most, Rate: rate})
	check(w.t, err)
	for went() < 3 {
		if j, err := w.c.core.Job(w.t.Context(), anna, job.ID); err != nil || j.State != service.JobRunning {
			w.t.Fatalf("the requeue job: got error %v and %+v, want no error and State = service.JobRunning", err, j)
		}
		<-time.After(10 * time.Millisecond)
	}
	return job, went
}

var anna = service.Identity{Name: "anna", Role: service.RoleOperator}

// A stopped requeue job keeps the number of sent messages, so that it does not exceed its limit when it is continued.
func TestStoppedRequeueKeepsItsCount(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"table": func(*Config) {}, "memory": func(c *Config) { c.Store, c.DB = nil, nil },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, change)
				job, went := w.requeues(40, 20)
				_, err := w.c.core.StopJob(t.Context(), anna, job.ID)
				check(t, err)
				check(t, w.c.Close(t.Context())) // waits for the work in progress
				job, err = w.c.core.Job(t.Context(), anna, job.ID)
				check(t, err)
				if job.State != service.JobStopped {
					t.Errorf("the job's state is %s, want service.JobStopped", job.State)
				}
				if int(job.Done) != went() {
					t.Errorf("the job reports %d moved messages, want %d", job.Done, went())
				}
			})
		})
	}
}

// If the process of a requeue job only seems to have exited and another process takes over the job, the two processes
// together do not exceed the job's limit.
func TestRequeueTakenOverStaysWithinItsLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 250
		w := newWorld(t)
		other := newWorldOn(t, w)
		job, went := w.requeues(most, 200)
		do := func(statements ...string) {
			t.Helper()
			for _, how := range statements {
				_, err := w.db.ExecContext(t.Context(), how)
				check(t, err)
			}
		}
		do("CREATE TRIGGER quiet AFTER UPDATE OF alive_at ON rabbitdelay_audit WHEN new.alive_at > 0 "+
			"BEGIN UPDATE rabbitdelay_audit SET alive_at = 0 WHERE id = new.id; END",
			"UPDATE rabbitdelay_audit SET alive_at = 0")
		_, err := other.c.core.ContinueJob(t.Context(), anna, job.ID)
		check(t, err)
		do("DROP TRIGGER quiet", "UPDATE rabbitdelay_audit SET alive_at = CAST(unixepoch('subsec') * 1000 AS INTEGER)")
		j := other.finished(map[string]any{"id": job.ID})
		check(t, w.c.Close(t.Context()))
		if n := went(); n > most || n < most-200 || !strings.Contains(fmt.Sprint(j["result"]), "possibly up to") {
			t.Errorf("%d messages were sent, want %d to %d and a result containing \"possibly up to\"; the job is %v", n, most-200, most, j)
		}
	})
}

package tasks_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/integration/loopback"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
)

// serving is a process of rabbitdelay serve with a database and without a broker.
type serving struct {
	t       *testing.T
	url     string
	process *exec.Cmd
}

func startServing(t *testing.T, db businessDB, flags ...string) *serving {
	t.Helper()
	ports, err := loopback.Ports(2)
	suite.MustSucceed(t, err)
	at := loopback.Address(ports[0])
	p := suite.Command(t, append([]string{
		"serve", "--db", cliURL(t, db), "--url", "amqp://guest:guest@" + loopback.Address(ports[1]) + "/", "--listen",
		at, "--log-level", "error",
	}, flags...)...)
	p.Stderr = os.Stderr
	suite.MustSucceed(t, p.Start())
	s := &serving{t: t, url: "http://" + at, process: p}
	t.Cleanup(s.kill)
	suite.Eventually(t, "serve answers", func() bool { code, _ := s.ask(http.MethodGet, "/healthz", ""); return code == http.StatusOK })
	return s
}

// kill sends SIGKILL.
func (s *serving) kill() {
	_ = s.process.Process.Kill()
	_ = s.process.Wait()
}

func (s *serving) ask(method, path, body string) (int, map[string]any) {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), method, s.url+path, strings.NewReader(body))
	suite.MustSucceed(s.t, err)
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
	got, err := client.Do(r)
	if err != nil {
		return 0, nil
	}
	defer got.Body.Close()
	text, _ := io.ReadAll(got.Body) // a killed process may cut off the response
	var out map[string]any
	_ = json.NewDecoder(bytes.NewReader(text)).Decode(&out) // pages are not JSON
	return got.StatusCode, out
}

// bulk starts a job for all tasks in the queue and returns the job's id.
func (s *serving) bulk(action string, count int) string {
	s.t.Helper()
	code, out := s.ask(http.MethodPost, "/api/v1/tasks/bulk", fmt.Sprintf(`{%s,"filter":{"queue":"orders.expire"},"count":%d}`, action, count))
	if code != http.StatusOK {
		s.t.Fatalf("%s: got %d %v, want 200", action, code, out)
	}
	return out["job"].(map[string]any)["id"].(string)
}

func (s *serving) job(id string) map[string]any {
	s.t.Helper()
	var code int
	var j map[string]any
	suite.Eventually(s.t, "serve returns the job", func() bool {
		code, j = s.ask(http.MethodGet, "/api/v1/jobs/"+id, "")
		return code != http.StatusServiceUnavailable
	})
	if code != http.StatusOK {
		s.t.Fatalf("job %s: got %d %v, want 200", id, code, j)
	}
	return j
}

// fillOrders schedules tasks that are due in a day.
func fillOrders(t *testing.T, db businessDB, n int) (*schedule.Store, time.Time) {
	t.Helper()
	s := newStore(t, db, nil, schedule.Config{})
	due := time.Now().Add(24 * time.Hour).Truncate(time.Second)
	for from := 0; from < n; from += 1000 {
		var tasks []schedule.Task
		for i := range 1000 {
			tasks = append(tasks, orderTask(fmt.Sprintf("t%05d", from+i), due))
		}
		suite.MustSucceed(t, s.ScheduleBatch(t.Context(), schedule.NoTx, tasks))
	}
	return s, due
}

// If a process is killed during a bulk change, its job is reported as interrupted, with the number of changed tasks.
// Another process continues the change, and each task is rescheduled once.
func TestServeKilledDuringBulk(t *testing.T) {
	t.Parallel()
	const n = 10_000
	eachDatabase(t, func(t *testing.T, db businessDB) {
		t.Parallel()
		store, due := fillOrders(t, db, n)
		moves, by := 0, time.Duration(0)
		moved := func() int64 {
			count, err := store.CountUpTo(t.Context(), schedule.NoTx, schedule.Filter{DueFrom: due.Add(by)}, 0)
			suite.MustSucceed(t, err)
			return count
		}
		next, id := startServing(t, db), ""
		for over := true; over; { // until a process was killed before its job was done
			moves, by = moves+1, by+time.Hour
			first := next
			id = first.bulk(`"action":"reschedule-by","by":"1h"`, n)
			suite.Eventually(t, "some tasks are rescheduled", func() bool { return moved() > 0 })
			first.kill()
			next = startServing(t, db)
			over = next.job(id)["state"] == "done"
		}
		suite.Eventually(t, "the next process reports the job as interrupted", func() bool { return next.job(id)["state"] == "interrupted" })
		j, at := next.job(id), moved()
		if at == 0 || at >= n || j["done"] != float64(at) || j["total"] != float64(n) {
			t.Errorf("after the kill: %d of %d tasks are rescheduled and the job is %v, want some but not all tasks, the same number as done, and the total", at, n, j)
		}
		if code, j := next.ask(http.MethodPost, "/api/v1/jobs/"+id+"/continue", ""); code != http.StatusOK {
			t.Fatalf("continuing the job: got %d %v, want 200", code, j)
		}
		suite.Eventually(t, "the job ends", func() bool { return next.job(id)["state"] != "running" })
		if j := next.job(id); j["state"] != "done" || j["done"] != float64(n) {
			t.Errorf(`the resumed job: got %v, want state = "done" and done = %v`, j, float64(n))
		}
		if once := db.queryInt(t, "SELECT COUNT(*) FROM rabbitdelay_tasks WHERE version = ? AND due_at = ?", 1+moves, due.Add(by).UnixMilli()); once != n {
			t.Errorf("%d tasks were rescheduled exactly once by each job, want all %d", once, n)
		}
		t.Logf("killed after %d of %d tasks", at, n)
	})
}

// Two processes that make the same bulk change at the same time only slow each other
// down: each job ends, changes that can happen once have happened once, and rescheduling
// by an hour twice reschedules the tasks by two hours.
func TestServeTwiceTheSameBulk(t *testing.T) {
	t.Parallel()
	const n = 5000
	oneDatabase(t, func(t *testing.T, db businessDB) {
		_, due := fillOrders(t, db, n)
		both := []*serving{startServing(t, db), startServing(t, db)}
		run := func(action string) (done float64) {
			t.Helper()
			var ids [2]string
			var wg sync.WaitGroup
			for i, s := range both {
				wg.Go(func() { ids[i] = s.bulk(action, n) })
			}
			wg.Wait()
			for i := range both {
				other := both[1-i] // any process can report the job
				suite.Eventually(t, "the job ends", func() bool { return other.job(ids[i])["state"] != "running" })
				j := other.job(ids[i])
				if j["state"] != "done" {
					t.Errorf(`%s: got %v, want "state": "done"`, action, j)
				}
				done += j["done"].(float64)
			}
			return done
		}
		if done := run(`"action":"reschedule-by","by":"1h"`); done != 2*n {
			t.Errorf("two jobs have rescheduled %v tasks, want %v", done, 2*n)
		}
		if twice := db.queryInt(t, "SELECT COUNT(*) FROM rabbitdelay_tasks WHERE version = 3 AND due_at = ?", due.Add(2*time.Hour).UnixMilli()); twice != n {
			t.Errorf("%d tasks were rescheduled by both jobs, want all %d", twice, n)
		}
		if done := run(`"action":"cancel"`); done != n {
			t.Errorf("two jobs have cancelled %v tasks, want %d", done, n)
		}
		if left := db.queryInt(t, "SELECT COUNT(*) FROM rabbitdelay_tasks WHERE status <> 'cancelled'"); left != 0 {
			t.Errorf("%d tasks are not cancelled, want 0", left)
		}
	})
}

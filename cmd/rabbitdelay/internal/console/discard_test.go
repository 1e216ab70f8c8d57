package console

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
)

// A discard job saves the removed messages in a file. An operator can download it, and requeue can send the messages
// again. Messages that are not selected stay in the queue. A continued job saves the remaining messages too.
func TestDiscard(t *testing.T) {
	w := newWorld(t)
	w.lay() // publishes the dead letters dead-1 and dead-2
	ready := func(queue string) int {
		q, _ := w.broker.Queue(queue)
		return q.Ready
	}
	const chosen = `{"queue":"orders.dead","ids":["dead-1"]`
	rep := w.must(200, "POST", "/api/v1/discard", chosen+`,"dry_run":true}`)["report"].(map[string]any)
	if rep["discarded"] != 1.0 || ready("orders.dead") != 2 {
		t.Fatalf("a dry run: got the report %v and %d messages in the queue, want discarded = 1 and 2", rep, ready("orders.dead"))
	}
	job := w.finished(w.must(200, "POST", "/api/v1/discard", chosen+`,"limit":1}`)["job"].(map[string]any))
	if job["state"] != "done" || job["done"] != 1.0 || ready("orders.dead") != 1 {
		t.Fatalf("got the job %v and %d messages in the queue, want a finished job that discarded one message, and 1 message", job, ready("orders.dead"))
	}
	path := "/api/v1/jobs/" + job["id"].(string) + "/messages"
	kept := filepath.Join(t.TempDir(), "kept.jsonl")
	r := w.ask("GET", path, "")
	check(t, os.WriteFile(kept, r.text, 0o600))
	for m, err := range inspect.SavedIn(kept) {
		check(t, err)
		if m.Message.MessageId != "dead-1" || string(m.Message.Body) != "secret body" {
			t.Errorf(`file %s contains %+v, want Message.MessageId = "dead-1" and Message.Body = "secret body"`, path, m)
		}
	}
	if r.code != 200 || len(r.text) == 0 || r.header.Get("Content-Type") != "application/jsonl" {
		t.Errorf("downloading the messages: got %d %v %s, want 200 and a body with the content type application/jsonl", r.code, r.header, r.text)
	}

	// The discard page counts messages before it asks for confirmation.
	asked := w.ask("GET", "/discard?queue=orders.dead&dry=1", "")
	counted := regexp.MustCompile(`name="counted" value="([^"]+)"`).FindStringSubmatch(string(asked.text))
	if counted == nil || !strings.Contains(string(asked.text), "Discard 1 message<") || strings.Contains(string(asked.text), `name="rate"`) {
		t.Fatalf(`got the form %s, want one with a count and "Discard 1 message<", and without "name="rate""`, asked.text)
	}
	token := tokenField.FindStringSubmatch(string(asked.text))
	form := url.Values{"token": {token[1]}, "queue": {"orders.dead"}, "counted": {counted[1]}, "count": {"1"}, "dry": {"1"}}
	if r := w.post("/discard", form, nil); r.code != 303 {
		t.Fatalf("submitting the discard form: got %d %s, want 303", r.code, r.text)
	} else if job := w.finished(map[string]any{"id": strings.TrimPrefix(r.header.Get("Location"), "job?id=")}); job["done"] != 1.0 || ready("orders.dead") != 0 {
		t.Errorf(`got the job %v and %d messages in the queue, want done = 1 and 0`, job, ready("orders.dead"))
	} else if page := w.ask("GET", "/job?id="+job["id"].(string), ""); !strings.Contains(string(page.text), "api/v1/jobs/"+job["id"].(string)+"/messages") {
		t.Errorf("got the job's page %s, want a link to its messages", page.text)
	}
	if e := w.must(200, "GET", "/api/v1/audit?target=orders.dead", "")["entries"].([]any); len(e) != 2 || e[0].(map[string]any)["action"] != "discard" {
		t.Errorf("the audit log: got %v, want two entries, the first with the action discard", e)
	}
}

// Without a configured directory, no message is discarded. Without a file, the job's page does not mention one.
func TestDiscardNeedsADirectory(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Discarded = "" })
	w.lay()
	for _, more := range []string{`"dry_run":true`, `"limit":2`} {
		r := w.ask("POST", "/api/v1/discard", fmt.Sprintf(`{"queue":"orders.dead",%s}`, more))
		if r.code != 503 || !strings.Contains(string(r.text), "serve.discarded") {
			t.Errorf(`discard without a directory: got %d %s, want 503 and "serve.discarded" in it`, r.code, r.text)
		}
	}
	if q, _ := w.broker.Queue("orders.dead"); q.Ready != 2 {
		t.Errorf("%d messages are in the queue, want 2", q.Ready)
	}
	job := w.finished(w.must(200, "POST", "/api/v1/requeue", `{"queue":"orders.dead","limit":1}`)["job"].(map[string]any))
	w.must(404, "GET", "/api/v1/jobs/"+job["id"].(string)+"/messages", "")
}

// If messages cannot be saved, they stay in the queue, and the job's error gives the reason.
func TestDiscardOnAFullDisk(t *testing.T) {
	blocked := filepath.Join(t.TempDir(), "file")
	check(t, os.WriteFile(blocked, nil, 0o600))
	w := newWorld(t, func(c *Config) { c.Discarded = filepath.Join(blocked, "below") })
	conn, err := w.broker.Connect()
	check(t, err)
	defer conn.Close()
	ch, err := conn.Channel()
	check(t, err)
	_, err = ch.QueueDeclare("lying", true, false, false, false, nil)
	check(t, err)
	check(t, ch.PublishWithContext(t.Context(), "", "lying", true, false, amqp.Publishing{MessageId: "1"}))
	// The broker answers after it has received what was published on the channel before.
	_, err = ch.QueueDeclarePassive("lying", true, false, false, false, nil)
	check(t, err)
	job := w.finished(w.must(200, "POST", "/api/v1/discard", `{"queue":"lying","limit":1}`)["job"].(map[string]any))
	if q, _ := w.broker.Queue("lying"); job["state"] != "failed" || !strings.Contains(job["error"].(string), "serve.discarded") || q.Ready != 1 {
		t.Errorf(`got the job %v and %d messages in the queue, want a failed job with an error containing "serve.discarded", and 1`, job, q.Ready)
	}
}

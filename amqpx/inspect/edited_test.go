package inspect_test

import (
	"encoding/json"
	"iter"
	"path/filepath"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/internal/inmemory"
)

// edited returns the messages in a saved file after editing each line.
func edited(t *testing.T, path string, edit func(line string) string) iter.Seq2[inspect.SavedMessage, error] {
	t.Helper()
	var list []inspect.SavedMessage
	for m, err := range inspect.SavedIn(path) {
		if err != nil {
			t.Fatal(err)
		}
		line, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		var again inspect.SavedMessage
		if err := json.Unmarshal([]byte(edit(string(line))), &again); err != nil {
			t.Fatal(err)
		}
		list = append(list, again)
	}
	return func(yield func(inspect.SavedMessage, error) bool) {
		for _, m := range list {
			if !yield(m, nil) {
				return
			}
		}
	}
}

// Requeue revives a failed task from its database row. If the task's line in the saved file was edited, Requeue skips
// the line and reports its number, because the edits would be lost.
func TestRequeueOfEditedTasks(t *testing.T) {
	same := func(line string) string { return line }
	for name, c := range map[string]struct {
		edit    func(line string) string
		revived int
	}{
		"as saved": {same, 1},
		"in another order": {func(line string) string {
			return `{"queue":"q.dead",` + strings.Replace(line[1:], `"queue":"q.dead",`, "", 1)
		}, 1},
		"another body": {func(line string) string { return strings.Replace(line, `"body":"old"`, `"body":"new"`, 1) }, 0},
		"another header": {func(line string) string {
			return strings.Replace(line, `"tenant":{"int32":1}`, `"tenant":{"int32":2}`, 1)
		}, 0},
		"another content type": {func(line string) string {
			return strings.Replace(line, `"content_type":"text/plain"`, `"content_type":"text/html"`, 1)
		}, 0},
		"another correlation id": {func(line string) string {
			return strings.Replace(line, `"correlation_id":"c"`, `"correlation_id":"d"`, 1)
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, func(t *testing.T, m *memory) {
				cl := m.open(amqpx.Config{})
				stop := cl.consume("q", rejects, amqpx.WithConcurrency(1))
				cl.mustSend(amqpx.Message{
					ID: "revived", Queue: "q", Version: 1, Body: []byte("old"), ContentType: "text/plain", CorrelationID: "c", Headers: amqp.Table{"tenant": int32(1)},
				})
				inmemory.After(time.Second)
				stop()
				path := filepath.Join(t.TempDir(), "dead.jsonl")
				file, err := inspect.CreateSaveFile(path)
				if err != nil {
					t.Fatal(err)
				}
				cl.requeue(inspect.RequeueOptions{Queue: "q.dead", Discard: true, Save: file.Save})
				if err := file.Close(); err != nil {
					t.Fatal(err)
				}
				for _, dry := range []bool{true, false} {
					r := cl.requeue(inspect.RequeueOptions{From: edited(t, path, c.edit), Tasks: byID{}, DryRun: dry})
					if r.Revived != c.revived || r.Stayed != 1-c.revived {
						t.Errorf("dry run %t: got %d revived and %d stayed (%+v), want %d and %d", dry, r.Revived, r.Stayed, r.Results, c.revived, 1-c.revived)
					}
					if c.revived == 0 && len(r.Results[0].Lines) != 1 {
						t.Errorf("Requeue of an edited task: got the results %+v, want the first with one line number", r.Results)
					}
				}
			})
		})
	}
}

// The limit also counts messages that their destination refuses. Otherwise a run with a small limit could read
// thousands of them.
func TestLimitEndsARunThatIsRefused(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		c.bury("q", 20)
		m.Cleanup(m.Deny("", amqptest.PermissionWrite, "^amq.default$"))
		r := c.requeue(inspect.RequeueOptions{Queue: "q.dead", Limit: 1})
		if r.Sent != 0 || r.Stayed != 1 || r.Examined != 1 {
			t.Errorf("Requeue with Limit = 1 of messages that are refused: got %d sent, %d stayed and %d examined, want 0, 1 and 1: %+v", r.Sent, r.Stayed, r.Examined, r.Results)
		}
		m.Holds("q.dead", 20, 0)
	})
}

package suite

import (
	"encoding/json"
	"net/http"
	"net/url"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/integration/broker"
)

// BindingsOf returns the exchanges to which a queue of the shared broker is bound, or none if the queue does not exist.
func BindingsOf(t testing.TB, queue string) (exchanges []string) {
	t.Helper()
	var bindings []struct {
		Source string `json:"source"`
	}
	if err := ask(t, "/api/queues/%2F/"+url.PathEscape(queue)+"/bindings", &bindings); err != nil {
		t.Fatal(err)
	}
	for _, b := range bindings {
		exchanges = append(exchanges, b.Source)
	}
	return exchanges
}

// LogQueues logs which queues of the shared broker contain messages. Call it if a message has not arrived.
func LogQueues(t testing.TB) {
	t.Helper()
	var queues []struct {
		Name    string `json:"name"`
		Ready   int    `json:"messages_ready"`
		Unacked int    `json:"messages_unacknowledged"`
	}
	if err := ask(t, "/api/queues?disable_stats=true&enable_queue_totals=true", &queues); err != nil {
		t.Logf("reading the queues failed: %v", err)
		return
	}
	for _, q := range queues {
		if q.Ready+q.Unacked > 0 {
			t.Logf("queue %s contains %d ready and %d unacknowledged messages", q.Name, q.Ready, q.Unacked)
		}
	}
}

// ask decodes an answer of the shared broker's management API. If the object does not exist, it leaves into unchanged.
func ask(t testing.TB, path string, into any) error {
	t.Helper()
	client := http.Client{Timeout: Patience}
	answer, err := client.Get(broker.Shared(t, broker.Options{}).ManagementURL() + path)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode == http.StatusNotFound {
		return nil
	}
	return json.NewDecoder(answer.Body).Decode(into)
}

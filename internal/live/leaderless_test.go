package live_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/internal/argument"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/internal/plan"
)

// askManagement returns the state of the queue q as it is read from a management API that answers with body.
func askManagement(t *testing.T, body string) plan.Queue {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(body)) }))
	defer s.Close()
	m, err := live.NewManagement(live.ManagementConfig{URL: s.URL})
	if err != nil {
		t.Fatal(err)
	}
	q, err := m.Queue(t.Context(), "q")
	if err != nil || q == nil {
		t.Fatalf("Queue: got %v, error %v, want a queue and no error", q, err)
	}
	return *q
}

// The answers are those of RabbitMQ 3.10, 4.0 and 4.3 when one node of three is running.
func TestQueuesThatDoNotAnswer(t *testing.T) {
	for name, c := range map[string]struct {
		answer      string
		unavailable string // how Unavailable starts
		unknown     bool
	}{
		"a leader":                    {`{"messages":0,"members":["a","b","c"],"online":["a","b"],"state":"running","type":"quorum"}`, "", false},
		"no leader":                   {`{"members":["a","b","c"],"online":["b"],"state":"minority","type":"quorum"}`, "the queue's state is minority", true},
		"no majority":                 {`{"members":["a","b","c"],"online":["b"],"state":"running","type":"quorum"}`, "1 of its 3 replicas", true},
		"no majority, old counts":     {`{"messages":5,"messages_ready":5,"members":["a","b","c"],"online":["b"],"state":"running","type":"quorum"}`, "1 of its 3 replicas", true},
		"a classic queue":             {`{"state":"down","type":"classic"}`, "the queue's state is down", true},
		"declared a moment ago":       {`{"state":"running","type":"classic"}`, "", true},
		"an empty queue that answers": {`{"messages":0,"state":"running","type":"classic"}`, "", false},
	} {
		q := askManagement(t, c.answer)
		if !strings.HasPrefix(q.Unavailable, c.unavailable) || c.unavailable == "" && q.Unavailable != "" {
			t.Errorf(`%s: got Unavailable = %q, want it to start with %q ("" means available)`, name, q.Unavailable, c.unavailable)
		}
		if q.Unknown() != c.unknown {
			t.Errorf("%s: got Unknown = %t, want %t", name, q.Unknown(), c.unknown)
		}
	}
}

// Large integers in arguments are read exactly, although encoding/json would read numbers as float64, which cannot
// represent an id with 19 digits.
func TestManagementKeepsLargeIntegers(t *testing.T) {
	const tenant = 1146223829839265793
	for text, want := range map[string]any{
		"1146223829839265793": int64(tenant), "-9223372036854775808": int64(-1 << 63), "9007199254740993": int64(1<<53 + 1),
		"1.5": 1.5, "1.0e30": 1e30, `[1146223829839265793]`: []any{int64(tenant)},
		`{"a":{"b":1146223829839265793}}`: map[string]any{"a": map[string]any{"b": int64(tenant)}},
	} {
		got := askManagement(t, `{"messages":0,"arguments":{"tenant":`+text+`}}`).Arguments["tenant"]
		if !argument.Equal(got, want) {
			t.Errorf("%s was decoded as %v (%[2]T), want %v", text, got, want)
		}
		if back, err := json.Marshal(got); err != nil || !strings.HasPrefix(text, "1.0") && string(back) != text {
			t.Errorf("%s was encoded as %s, error %v, want it unchanged and no error", text, back, err)
		}
	}
}

func TestUnavailableErrorIsOne(t *testing.T) {
	if err := error(&live.UnavailableError{Queue: "q", Reason: "nodedown"}); !errors.Is(err, live.ErrUnavailable) {
		t.Errorf("an UnavailableError: got %v, want an error that wraps live.ErrUnavailable", err)
	}
}

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

// askManagement returns what Management.Queue reads about the queue q from a management API that answers with body.
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
		t.Fatalf("got %v, %v, want a result and no error", q, err)
	}
	return *q
}

// These are the answers of RabbitMQ 3.10, 4.0 and 4.3 with one node of three.
func TestQueuesThatDoNotAnswer(t *testing.T) {
	for name, c := range map[string]struct {
		answer      string
		unavailable string // how Unavailable begins
		unknown     bool
	}{
		"a leader":                  {`{"messages":0,"members":["a","b","c"],"online":["a","b"],"state":"running","type":"quorum"}`, "", false},
		"no leader":                 {`{"members":["a","b","c"],"online":["b"],"state":"minority","type":"quorum"}`, "the queue's state is minority", true},
		"no majority":               {`{"members":["a","b","c"],"online":["b"],"state":"running","type":"quorum"}`, "1 of its 3 replicas", true},
		"no majority, old counts":   {`{"messages":5,"messages_ready":5,"members":["a","b","c"],"online":["b"],"state":"running","type":"quorum"}`, "1 of its 3 replicas", true},
		"a classic queue":           {`{"state":"down","type":"classic"}`, "the queue's state is down", true},
		"declared a moment ago":     {`{"state":"running","type":"classic"}`, "", true},
		"an empty one that answers": {`{"messages":0,"state":"running","type":"classic"}`, "", false},
	} {
		q := askManagement(t, c.answer)
		if !strings.HasPrefix(q.Unavailable, c.unavailable) || c.unavailable == "" && q.Unavailable != "" {
			t.Errorf("%s: Unavailable is %q, want it to begin with %q", name, q.Unavailable, c.unavailable)
		}
		if q.Unknown() != c.unknown {
			t.Errorf("%s: Unknown() = %t, want %t", name, q.Unknown(), c.unknown)
		}
	}
}

// JSON numbers are read as float64, which cannot represent every id of 19 digits.
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
			t.Errorf("%s was encoded as %s, %v, want it unchanged", text, back, err)
		}
	}
}

func TestUnavailableErrorIsOne(t *testing.T) {
	if err := error(&live.UnavailableError{Queue: "q", Reason: "nodedown"}); !errors.Is(err, live.ErrUnavailable) {
		t.Errorf("%v does not wrap live.ErrUnavailable", err)
	}
}

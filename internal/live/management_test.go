package live_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/internal/plan"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// answers contains the broker's answers about the virtual host "a/b", by path.
var answers = map[string]string{
	"/api/exchanges/a%2Fb": `[{"name":"","type":"direct","durable":true,"arguments":{}},
		{"name":"x","type":"topic","durable":true,"auto_delete":false,"internal":true,"arguments":{"alternate-exchange":"y"}}]`,
	"/api/queues/a%2Fb": `[{"name":"q","type":"quorum","durable":true,"arguments":{"x-message-ttl":60000},"messages":9,"messages_ready":3,"messages_unacknowledged":4,"messages_delayed":1,"consumers":1,
			"policy":"before","operator_policy":"o","effective_policy_definition":{"expires":7},"members":["a","b"],"online":["a","b"],"leader":"a","state":"running"},
		{"name":"old","type":"rabbit_classic_queue","durable":true,"arguments":{},"effective_policy_definition":[]}]`,
	"/api/bindings/a%2Fb": `[{"source":"","destination":"q","destination_type":"queue","routing_key":"q","arguments":{}},
		{"source":"x","destination":"q","destination_type":"queue","routing_key":"k","arguments":{"n":1},"properties_key":"k~1"},
		{"source":"x","destination":"y","destination_type":"exchange","routing_key":"","arguments":{},"properties_key":"~"}]`,
	"/api/policies/a%2Fb":          `[{"vhost":"a/b","name":"p","pattern":"^q","apply-to":"queues","priority":2,"definition":{"expires":5}}]`,
	"/api/operator-policies/a%2Fb": `[{"vhost":"a/b","name":"o","pattern":"q","apply-to":"queues","priority":0,"definition":{"expires":9}}]`,
}

// server returns a server that answers like a broker, except that refused paths get the given status.
func server(t *testing.T, refused map[string]int) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path := r.URL.EscapedPath()
		if user, password, _ := r.BasicAuth(); user != "u" || password != "hidden" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if status, ok := refused[path]; ok {
			w.WriteHeader(status)
			_, _ = w.Write([]byte(`{"error":"not_authorised","reason":"no"}`)) // ignore the error: if this fails, the client's call fails too
			return
		}
		_, _ = w.Write([]byte(answers[path])) // ignore the error: if this fails, the client's call fails too
	}))
	t.Cleanup(s.Close)
	return s
}

func inspector(t *testing.T, s *httptest.Server) *live.Management {
	t.Helper()
	i, err := live.NewManagement(live.ManagementConfig{URL: strings.Replace(s.URL, "//", "//u:hidden@", 1) + "/", Vhost: "a/b"})
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func TestInspectReadsEverything(t *testing.T) {
	s := server(t, nil)
	got, err := inspector(t, s).Inspect(t.Context(), topology.Topology{})
	if err != nil {
		t.Fatal(err)
	}
	want := plan.State{
		Source: "management API", Vhost: "a/b", BindingsKnown: true, PoliciesKnown: true,
		Exchanges: map[string]plan.Exchange{
			"":  {ArgumentsKnown: true, Kind: "direct", Durable: true, Arguments: amqp.Table{}},
			"x": {ArgumentsKnown: true, Kind: "topic", Durable: true, Internal: true, Arguments: amqp.Table{"alternate-exchange": "y"}},
		},
		Queues: map[string]plan.Queue{
			"q": {
				ArgumentsKnown: true, Type: topology.Quorum, Durable: true,
				Arguments: amqp.Table{"x-message-ttl": int64(60000)}, Messages: 9, Unacked: 4, Leaving: 1,
				Consumers: 1,
				Members:   []string{"a", "b"}, Online: []string{"a", "b"}, Node: "a", State: "running",
				// EffectivePolicy is computed from the policies, because the one that the queue reports may be stale.
				Policy: "p", OperatorPolicy: "o", EffectivePolicy: map[string]any{"expires": int64(5)},
			},
			"old": {Uncounted: true, ArgumentsKnown: true, Type: topology.Classic, Durable: true, Arguments: amqp.Table{}, EffectivePolicy: map[string]any{}},
		},
		Bindings: []topology.Binding{
			{Exchange: "x", Queue: "q", RoutingKey: "k", Arguments: amqp.Table{"n": int64(1)}},
			{Exchange: "x", ToExchange: "y", Arguments: amqp.Table{}},
		},
		Unbind: map[string]string{
			`"x" -> queue "q", routing key "k", arguments {n: 1}`: s.URL + "/api/bindings/a%2Fb/e/x/q/q/k~1",
			`"x" -> exchange "y", routing key ""`:                 s.URL + "/api/bindings/a%2Fb/e/x/e/y/~",
		},
		Policies: []plan.Policy{
			{Name: "p", Pattern: "^q", ApplyTo: "queues", Priority: 2, Definition: map[string]any{"expires": int64(5)}},
			{Name: "o", Operator: true, Pattern: "q", ApplyTo: "queues", Definition: map[string]any{"expires": int64(9)}},
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("Inspect:\ngot  %+v\nwant %+v", got, want)
	}
}

func TestPoliciesAreOptional(t *testing.T) {
	for _, status := range []int{http.StatusUnauthorized, http.StatusForbidden} {
		got, err := inspector(t, server(t, map[string]int{"/api/policies/a%2Fb": status})).Inspect(t.Context(), topology.Topology{})
		if err != nil || got.PoliciesKnown || len(got.Queues) != 2 {
			t.Errorf("policies refused with the status %d: got %+v, error %v, want PoliciesKnown = false, 2 queues and no error", status, got, err)
		}
	}
	if _, err := inspector(t, server(t, map[string]int{"/api/policies/a%2Fb": 500})).Inspect(t.Context(), topology.Topology{}); err == nil {
		t.Error("policies refused with the status 500: got no error, want one")
	}
}

func TestErrorsSayWhereAndNotThePassword(t *testing.T) {
	for path := range answers {
		if strings.Contains(path, "policies") {
			continue
		}
		_, err := inspector(t, server(t, map[string]int{path: 404})).Inspect(t.Context(), topology.Topology{})
		if err == nil || !strings.Contains(err.Error(), `virtual host "a/b"`) || strings.Contains(err.Error(), "hidden") {
			t.Errorf(`Inspect with %s refused: got %v, want an error with 'virtual host "a/b"' and without the password`, path, err)
		}
	}
	s := server(t, nil)
	i := inspector(t, s)
	s.Close()
	if _, err := i.Inspect(t.Context(), topology.Topology{}); err == nil || strings.Contains(err.Error(), "hidden") {
		t.Errorf("a server that does not exist: got %v, want an error without the password", err)
	}
	for _, bad := range []string{"", "127.0.0.1:15672", "ftp://u:hidden@h", "http://u:hidden@h:x y"} {
		if _, err := live.NewManagement(live.ManagementConfig{URL: bad}); err == nil || strings.Contains(err.Error(), "hidden") {
			t.Errorf("NewManagement with %q: got %v, want an error without the password", bad, err)
		}
	}
}

func TestInspectEndsWithTheContext(t *testing.T) {
	arrived := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(arrived)
		<-r.Context().Done()
	}))
	defer s.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-arrived
		cancel()
	}()
	if _, err := inspector(t, s).Inspect(ctx, topology.Topology{}); !errors.Is(err, context.Canceled) {
		t.Errorf("Inspect with a cancelled context: got %v, want context.Canceled", err)
	}
}

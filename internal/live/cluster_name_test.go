package live_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
)

// In a cluster without a name, each node reports its own name over AMQP. SameCluster must recognise the cluster even if
// AMQP and the management API reach different nodes.
func TestSameCluster(t *testing.T) {
	const nodes = `[{"name":"rabbit@n1"},{"name":"rabbit@n2"}]`
	for name, c := range map[string]struct {
		amqp, overview string
		nodes          string // the answer to the request for nodes; empty if the user may not list them
		shows          bool   // whether the management API finds a queue that the connection declared
		same           bool
	}{
		"one name":                         {"shop", "shop", nodes, false, true},
		"another node":                     {"rabbit@n2", "rabbit@n1", nodes, false, true},
		"another node, by its host's name": {"rabbit@n2.shop.internal", "rabbit@n1.shop.internal", nodes, false, true},
		"a node of another cluster":        {"rabbit@n22", "rabbit@n1", nodes, false, false},
		"another cluster with a name":      {"shop", "staging", nodes, false, false},
		"no permission to list nodes":      {"rabbit@n2", "rabbit@n1", "", true, true},
		"no permission, another cluster":   {"rabbit@n2", "rabbit@n1", "", false, false},
		"renamed after connecting":         {"shop", "mall", nodes, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case strings.HasPrefix(r.URL.Path, "/api/overview"):
					_, _ = w.Write([]byte(`{"cluster_name":"` + c.overview + `"}`))
				case r.URL.Path == "/api/nodes" && c.nodes != "":
					_, _ = w.Write([]byte(c.nodes))
				case r.URL.Path == "/api/nodes":
					w.WriteHeader(http.StatusUnauthorized)
				case c.shows:
					_, _ = w.Write([]byte(`{"name":"q","state":"running"}`))
				default:
					w.WriteHeader(http.StatusNotFound)
				}
			}))
			defer api.Close()
			m, err := live.NewManagement(live.ManagementConfig{URL: api.URL})
			if err != nil {
				t.Fatal(err)
			}
			srv := amqptest.NewServer(amqptest.Options{})
			defer srv.Close()
			conn, err := srv.Connect()
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			conn.Properties["cluster_name"] = c.amqp
			err = m.SameCluster(t.Context(), conn)
			if _, foreign := errors.AsType[*live.ClusterError](err); foreign == c.same {
				t.Errorf("SameCluster: got %v, want a *ClusterError: %t", err, !c.same)
			}
		})
	}
}

// Failure distinguishes a management API that refuses a user or returns an error from one that does not answer.
func TestFailure(t *testing.T) {
	for want, err := range map[string]error{
		"refuses this user":      fmt.Errorf("read queues: %w", &live.StatusError{Code: http.StatusUnauthorized}),
		"answered with an error": &live.StatusError{Code: http.StatusInternalServerError},
		"did not answer":         errors.New("connection refused"),
	} {
		if got := live.Failure(err); got != want {
			t.Errorf("Failure(%v) = %q, want %q", err, got, want)
		}
	}
}

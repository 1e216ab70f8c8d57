package operations_test

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/integration/broker"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
)

// A broker of each version starts with the recommended settings and uses them.
func TestRecommendedSettings(t *testing.T) {
	t.Parallel()
	conf, err := os.ReadFile("../../../../docs/rabbitmq.conf")
	if err != nil {
		t.Fatal(err)
	}
	advanced, err := os.ReadFile("../../../../docs/advanced.config")
	if err != nil {
		t.Fatal(err)
	}
	versions, err := broker.Versions(t.Context())
	if err != nil {
		t.Skipf("skipped: %v", err)
	}
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			b := broker.Shared(t, broker.Options{Version: version, Management: true, Config: string(conf), Advanced: string(advanced)})
			m, err := live.NewManagement(live.ManagementConfig{URL: b.ManagementURL()})
			if err != nil {
				t.Fatal(err)
			}
			var nodes []struct {
				Files []string `json:"config_files"`
			}
			// The doctor uses this list to find out whether there is an advanced.config. A node reports its files a few
			// seconds after its start.
			suite.Eventually(t, "the management API lists the node's files", func() bool {
				_, err := m.Call(t.Context(), http.MethodGet, "/api/nodes", nil, &nodes)
				return err == nil && len(nodes) == 1 && nodes[0].Files != nil
			})
			if !slices.ContainsFunc(nodes[0].Files, func(f string) bool { return strings.HasPrefix(filepath.Base(f), "advanced") }) {
				t.Errorf("the management API lists the files %q, want an advanced.config among them", nodes[0].Files)
			}
			for question, want := range map[string]string{
				"application:get_env(rabbit, consumer_timeout).":                             "{ok,1800000}",
				"application:get_env(rabbit, dead_letter_worker_publisher_confirm_timeout).": "{ok,10000}",
				"maps:get(wal_max_size_bytes, ra_system:fetch(quorum_queues)).":              "67108864",
			} {
				out, err := b.Ctl(t.Context(), "eval", question)
				if err != nil {
					t.Fatalf("%s: %v", question, err)
				}
				if got := strings.TrimSpace(out); got != want {
					t.Errorf("%s is %s, want %s", question, got, want)
				}
			}
		})
	}
}

package main

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/integration/binary"
	"github.com/rabbitdelay/rabbitdelay/integration/broker"
	"github.com/rabbitdelay/rabbitdelay/integration/database"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

func runLab(ctx context.Context, args ...string) suite.Ran {
	var out, errs strings.Builder
	code := Run(ctx, args, strings.NewReader(""), &out, &errs)
	return suite.Ran{Result: binary.Result{Code: code, Stdout: out.String(), Stderr: errs.String()}}
}

// In a demo on every database, no message is early, lost or handled twice.
func TestLabDemo(t *testing.T) {
	t.Parallel()
	keys := []string{
		"orders", "paid", "cancelled", "early", "lost", "duplicates_injected", "effects_twice", "lateness_ms", "strategy", "broker", "database", "posts",
	}
	check := func(t *testing.T, orders int, dbName, strategy string, args ...string) {
		t.Parallel()
		got := runLab(t.Context(), append([]string{
			"demo", "--json", "--url", broker.Shared(t, broker.Options{}).URL(),
			"--orders", fmt.Sprint(orders), "--strategy", strategy, "--queue-type", "classic",
		}, args...)...)
		m := got.Last(t, keys...)
		if got.Code != 0 || m["orders"] != float64(orders) || m["paid"].(float64)+m["cancelled"].(float64) != float64(orders) {
			t.Fatalf("demo: got %v, want exit code 0 and %d orders, each paid or cancelled", got, orders)
		}
		if m["duplicates_injected"] == 0.0 || m["database"] != dbName || m["strategy"] != strategy {
			t.Errorf("demo: got %v, want duplicates, database %s and strategy %s", got, dbName, strategy)
		}
		p := m["posts"].(map[string]any)
		for key, want := range map[string]float64{"scheduled": 95, "rolled_back": 5} {
			if p[key] != want {
				t.Errorf("%s is %v, want %v:\n%s", key, p[key], want, got)
			}
		}
		if n := p["published"].(float64) + p["cancelled"].(float64); n != 95 {
			t.Errorf("got %v posts that were published or cancelled, want 95:\n%s", n, got)
		}
		for _, key := range []string{"stale_stopped", "cancelled_stopped"} {
			if p[key] == 0.0 {
				t.Errorf("%s is 0, want more than 0:\n%s", key, got)
			}
		}
		if strings.Contains(got.Stdout+got.Stderr, "guest:guest") {
			t.Errorf("the output contains the password, want it redacted: %s", got)
		}
	}
	t.Run("SQLite", func(t *testing.T) { check(t, 150, "sqlite", "bucket") })
	for kind, name := range map[database.Kind]string{database.PostgreSQL: "postgres", database.MariaDB: "mysql"} {
		t.Run(string(kind), func(t *testing.T) {
			server := database.Shared(t, kind)
			check(t, 80, name, "auto", "--db", server.URL())
			db, err := sql.Open(server.Driver(), server.DSN())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = db.Close() }()
			var left int
			err = db.QueryRowContext(t.Context(),
				"SELECT COUNT(*) FROM information_schema.schemata WHERE schema_name LIKE 'rabbitdelay_demo%'").Scan(&left)
			if err != nil {
				t.Fatal(err)
			}
			if left != 0 {
				t.Errorf("%d schemas are left in the database, want 0", left)
			}
		})
	}
}

// An interrupted demo deletes its queues, exchanges and files.
func TestLabDemoInterrupted(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	b := broker.Shared(t, broker.Options{Management: true})
	if b.ManagementURL() == "" {
		t.Skipf("skipped: the broker at AMQP_URL is used without its management API; set %s", broker.EnvManagementURL)
	}
	before := demoObjects(t, b)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan suite.Ran, 1)
	go func() {
		ended <- runLab(ctx, "demo", "--story", "orders", "--strategy", "ttl", "--queue-type", "classic", "--url", b.URL(), "-q")
	}()
	deadline := time.After(suite.Patience)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for begun := false; !begun; {
		select {
		case <-tick.C:
			begun = len(newSince(before, demoObjects(t, b))) > 0
		case r := <-ended:
			t.Fatalf("the program exited before it was interrupted: %s", r)
		case <-deadline:
			t.Fatal("the demo declared no queue in time, want at least one")
		}
	}
	cancel()
	select {
	case r := <-ended:
		if r.Code != 130 || r.Stderr != "rabbitdelay-lab: interrupted\n" {
			t.Errorf(`got %v, want exit code 130 and the errors "rabbitdelay-lab: interrupted\n"`, r)
		}
	case <-deadline:
		t.Fatal("the program did not exit in time after it was interrupted")
	}
	if left := newSince(before, demoObjects(t, b)); len(left) != 0 {
		t.Errorf("objects left on the broker: got %v, want none", left)
	}
	if left, _ := filepath.Glob(temp + "/rabbitdelay-demo-*"); len(left) != 0 {
		t.Errorf("files left in the temporary directory: got %v, want none", left)
	}
}

// demoObjects returns the queues and exchanges that demos have declared on a broker.
func demoObjects(t *testing.T, b *broker.Broker) []string {
	t.Helper()
	i, err := live.NewManagement(live.ManagementConfig{URL: b.ManagementURL()})
	if err != nil {
		t.Fatal(err)
	}
	found, err := i.Inspect(t.Context(), topology.Topology{})
	if err != nil {
		t.Fatal(err)
	}
	names := slices.AppendSeq(slices.Collect(maps.Keys(found.Queues)), maps.Keys(found.Exchanges))
	return slices.DeleteFunc(names, func(n string) bool { return !strings.HasPrefix(n, "rabbitdelay-demo-") })
}

func newSince(before, now []string) []string {
	return slices.DeleteFunc(now, func(n string) bool { return slices.Contains(before, n) })
}

package operations_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	registry "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.yaml.in/yaml/v3"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/telemetry"
	"github.com/rabbitdelay/rabbitdelay/integration/broker"
	"github.com/rabbitdelay/rabbitdelay/integration/loopback"
	"github.com/rabbitdelay/rabbitdelay/integration/prometheus"
	"github.com/rabbitdelay/rabbitdelay/integration/servers"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

const (
	rulesFile     = "../../../../docs/prometheus/rules.yaml"
	rulesTestFile = "../../../../docs/prometheus/rules_test.yaml"
	dashboardFile = "../../../../docs/grafana/rabbitdelay.json"
)

// ruleFile has the fields that the tests read from rulesFile.
type ruleFile struct {
	Groups []struct {
		Rules []struct {
			Record, Alert, Expr string
			Labels, Annotations map[string]string
		}
	}
}

func readRules(t *testing.T) ruleFile {
	t.Helper()
	text, err := os.ReadFile(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	var f ruleFile
	if err := yaml.Unmarshal(text, &f); err != nil {
		t.Fatal(err)
	}
	return f
}

// Prometheus accepts the rules. Each alert fires in its test and not before, and each links to an existing heading in
// the documentation.
func TestPrometheusRules(t *testing.T) {
	t.Parallel()
	if os.Getenv(servers.EnvSkip) == "1" {
		t.Skipf("skipped: %s is 1", servers.EnvSkip)
	}
	for _, args := range [][]string{{"check", "rules", rulesFile}, {"test", "rules", rulesTestFile}} {
		if out, err := exec.Command("promtool", args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	tested, err := os.ReadFile(rulesTestFile)
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range readRules(t).Groups {
		for _, r := range g.Rules {
			if r.Alert == "" {
				continue
			}
			if !strings.Contains(string(tested), `alertname="`+r.Alert+`"`) {
				t.Errorf("alert %s: rulesTestFile contains no test that it fires, want one", r.Alert)
			}
			if r.Labels["severity"] == "" || r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("alert %s: got labels %v and annotations %v, want a severity, a summary and a description", r.Alert, r.Labels, r.Annotations)
			}
			checkRunbook(t, r.Alert, r.Annotations["runbook_url"])
		}
	}
}

// checkRunbook fails the test unless the link leads to an existing heading.
func checkRunbook(t *testing.T, alert, link string) {
	t.Helper()
	page, anchor, _ := strings.Cut(strings.TrimPrefix(link, "https://github.com/rabbitdelay/rabbitdelay/blob/main/"), "#")
	text, err := os.ReadFile("../../../../" + page)
	if err != nil {
		t.Errorf("alert %s: %v", alert, err)
		return
	}
	for line := range strings.Lines(string(text)) {
		heading, ok := strings.CutPrefix(strings.TrimSpace(line), "## ")
		heading = regexp.MustCompile(`[^\w\- ]`).ReplaceAllString(strings.ToLower(heading), "")
		if ok && strings.ReplaceAll(heading, " ", "-") == anchor {
			return
		}
	}
	t.Errorf("alert %s: page %s has no heading with the anchor #%s, want one", alert, page, anchor)
}

// With traffic of every kind, every query in the dashboard and in the rules returns data.
func TestPrometheusFindsData(t *testing.T) {
	t.Parallel()
	v := suite.NewVhost(t, broker.Shared(t, broker.Options{Management: true}))
	metrics, tel := observed(t)
	service := httptest.NewServer(metrics)
	defer service.Close()
	ports, err := loopback.Ports(1)
	if err != nil {
		t.Fatal(err)
	}
	serve := loopback.Address(ports[0])
	p, err := prometheus.Start(t.Context(), rulesFile, serve, service.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}()
	makeTraffic(t, v, tel, serve)

	queries := dashboardQueries(t)
	for _, g := range readRules(t).Groups {
		for _, r := range g.Rules {
			if r.Record != "" {
				queries[r.Record] = []string{r.Expr, r.Record}
			} else {
				queries[r.Alert] = operands(r.Expr)
			}
		}
	}
	if len(queries) < 30 {
		t.Fatalf("got %d panels and rules, want at least 30", len(queries))
	}
	for from, list := range queries {
		for _, q := range list {
			var last error
			suite.Eventually(t, from+": the query "+q+" returns data", func() bool {
				var n int
				n, last = p.Count(t.Context(), q)
				return n > 0 || last != nil
			})
			if last != nil {
				t.Errorf("%s: query %s: got error %v, want nil", from, q, last)
			}
		}
	}
}

// operands returns the operands of an alert's comparisons. Unlike the comparison, they have data even if the alert does
// not fire.
func operands(expr string) []string {
	var list []string
	for _, part := range regexp.MustCompile(`\s(?:and|or|unless)\s`).Split(expr, -1) {
		list = append(list, regexp.MustCompile(`\s*(==|!=|<=|>=|<|>)\s*-?[0-9.]+$`).ReplaceAllString(part, ""))
	}
	return list
}

// dashboardQueries returns the queries of the dashboard by panel and variable.
func dashboardQueries(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
		Templating struct {
			List []struct{ Name, Definition string }
		}
	}
	if err := json.Unmarshal(text, &board); err != nil {
		t.Fatal(err)
	}
	fill := strings.NewReplacer("$__rate_interval", "15s", "$destination", ".*", "$instance", ".*", "$job", ".*").Replace
	queries := map[string][]string{}
	for _, panel := range board.Panels {
		for _, target := range panel.Targets {
			queries[panel.Title] = append(queries[panel.Title], fill(target.Expr))
		}
	}
	for _, variable := range board.Templating.List {
		if m := regexp.MustCompile(`^label_values\((.*), (\w+)\)$`).FindStringSubmatch(variable.Definition); m != nil {
			queries["$"+variable.Name] = []string{fmt.Sprintf(`count by (%s) (%s)`, m[2], fill(m[1]))}
		}
	}
	return queries
}

// observed returns a handler that serves the metrics of this process, and the telemetry that records them.
func observed(t *testing.T) (http.Handler, *telemetry.Telemetry) {
	t.Helper()
	all := registry.NewRegistry()
	reader, err := exporter.New(exporter.WithRegisterer(all), exporter.WithoutScopeInfo(), exporter.WithoutTargetInfo())
	if err != nil {
		t.Fatal(err)
	}
	provider := sdk.NewMeterProvider(sdk.WithReader(reader))
	t.Cleanup(func() { _ = provider.Shutdown(context.Background()) })
	tel, err := telemetry.New(telemetry.Config{MeterProvider: provider, Interval: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return promhttp.HandlerFor(all, promhttp.HandlerOpts{}), tel
}

// makeTraffic sends and handles messages with every outcome until the test ends. It uses a client that tel observes,
// and rabbitdelay serve, which listens for probes at the given address.
func makeTraffic(t *testing.T, v *suite.Vhost, tel *telemetry.Telemetry, probe string) {
	t.Helper()
	client := suite.OpenClient(t, amqpx.Config{URL: v.URL, Hooks: []amqpx.Hook{tel.Hook()}})
	file := filepath.Join(t.TempDir(), "tasks.db")
	db, err := sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(180000)&_pragma=journal_mode(wal)&_pragma=synchronous(off)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	if err := schedule.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	store, err := schedule.New(db, client, schedule.Config{Hooks: tel.Hooks(schedule.Hooks{})})
	if err != nil {
		t.Fatal(err)
	}
	_, clientErr := tel.ObserveClient(client)
	_, queuesErr := tel.ObserveQueues(client, []topology.Destination{{Queue: "orders"}})
	if err := errors.Join(clientErr, queuesErr); err != nil {
		t.Fatal(err)
	}
	runUntilEnd(t, func(ctx context.Context) error {
		r := suite.RunCLI(ctx, "serve", "--url", v.URL, "--db", "sqlite:"+file, "--listen", "127.0.0.1:0", "--probe", probe)
		if r.Code != 0 {
			return fmt.Errorf("serve: %v", r)
		}
		return nil
	})
	runUntilEnd(t, func(ctx context.Context) error { return client.Consume(ctx, "orders", everyFate()) })
	runUntilEnd(t, func(ctx context.Context) error {
		effect := func(context.Context, *sql.Tx, *amqpx.Delivery) error { return nil }
		return client.Consume(ctx, "tasks", schedule.Handler(db, effect, schedule.OnSkip(tel.TaskSkipped)))
	})
	send := func(m amqpx.Message) {
		t.Helper()
		if err := client.Send(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	send(amqpx.Message{Queue: "gone", Delay: 2 * time.Second})
	ch, err := v.Conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ch.QueueDelete("gone", false, false, false); err != nil {
		t.Fatal(err)
	}
	for id, in := range map[string]time.Duration{"now": 0, "hour": time.Hour / 2, "day": 12 * time.Hour, "week": 72 * time.Hour, "later": 1000 * time.Hour} {
		if err := store.Schedule(t.Context(), schedule.NoTx, schedule.Task{ID: id, Queue: "tasks", DeliverAt: time.Now().Add(in)}); err != nil {
			t.Fatalf("%s: %v", id, err)
		}
	}
	// Another program inserted this row. Its headers cannot be read, so it fails immediately. A task for a missing
	// destination is retried for half a minute.
	if _, err := db.ExecContext(t.Context(), `INSERT INTO rabbitdelay_tasks (id, queue, headers, due_at) VALUES ('unsendable', 'tasks', '{"a":1}', ?)`,
		time.Now().UnixMilli()); err != nil {
		t.Fatal(err)
	}
	runUntilEnd(t, func(ctx context.Context) error {
		for ctx.Err() == nil {
			_ = client.Send(ctx, amqpx.Message{Queue: "orders", Delay: 10 * time.Millisecond}) // the test may be ending
			_ = client.Send(ctx, amqpx.Message{Queue: "orders", Delay: -1})                    // is invalid
			// The version of this message is lower than that of its task.
			_ = client.Send(ctx, amqpx.Message{ID: "now", Queue: "tasks", Version: 1})
			select {
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
		}
		return nil
	})
}

// everyFate returns a handler that acknowledges, retries, snoozes and dead-letters its deliveries in turn.
func everyFate() amqpx.Handler {
	var n atomic.Int64
	return func(context.Context, *amqpx.Delivery) error {
		switch n.Add(1) % 8 {
		case 1:
			return amqpx.RetryIn(100*time.Millisecond, errors.New("again"))
		case 2:
			return amqpx.Snooze(100 * time.Millisecond)
		case 3:
			return amqpx.Reject(errors.New("never"))
		}
		return nil
	}
}

// runUntilEnd runs f until the test ends.
func runUntilEnd(t *testing.T, f func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- f(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

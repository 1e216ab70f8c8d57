package cli

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/config"
)

// What will not happen although nobody has said so is where people look: a recurring
// task that cannot be planned with its reason, and pending tasks for destinations that
// the file does not list.
func TestTroublesOfTasksAreSeen(t *testing.T) {
	b := newByHand(t)
	dbURL := "sqlite:" + filepath.Join(t.TempDir(), "tasks.db")
	file := filepath.Join(t.TempDir(), "delays.yaml")
	if err := os.WriteFile(file, []byte("broker: {declare: listed}\nexchanges: [{name: x, type: topic}]\ndestinations: [{queue: q}, {exchange: x, routing_key: good}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := run(t, "", "migrate", "--db", dbURL); code != 0 {
		t.Fatal(stderr)
	}
	db, _, err := config.OpenDB(config.URL(dbURL))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	exec := func(query string, args ...any) {
		t.Helper()
		if _, err := db.ExecContext(t.Context(), query, args...); err != nil {
			t.Fatal(err)
		}
	}
	exec("INSERT INTO rabbitdelay_schedules (name, queue, cron, headers) VALUES ('broken', 'q', '@hourly', 'null'), ('good', 'q', '@hourly', NULL)")
	exec("INSERT INTO rabbitdelay_schedules (name, queue, cron, planned_version, plan_at, next_at) VALUES ('still', 'q', '@hourly', 1, ?, ?)",
		time.Now().Add(time.Hour).UnixMilli(), time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli())
	planned(t, b, schedule.Config{PollInterval: 10 * time.Millisecond}, dbURL)
	due := time.Now().Add(29 * 24 * time.Hour).UnixMilli()
	exec("INSERT INTO rabbitdelay_tasks (id, queue, due_at) VALUES ('odd1', 'odd', ?), ('odd2', 'odd', ?), ('ok', 'q', ?)", due, due, due)
	exec("INSERT INTO rabbitdelay_tasks (id, exchange, routing_key, due_at) VALUES ('k1', 'x', 'bad', ?), ('k2', 'x', 'good', ?)", due, due)

	_, out, stderr := b.run(t, "doctor", "-f", file, "--db", dbURL, "--json")
	var report struct {
		Findings []struct {
			ID, What, Mend string
			Objects        []string
		}
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatalf("%v: %s", err, stderr)
	}
	found := map[string]string{}
	for _, f := range report.Findings {
		found[f.ID] = f.What + " " + f.Mend + " " + strings.Join(f.Objects, ",")
	}
	for id, want := range map[string][]string{
		"recurring-not-planned": {"2 recurring tasks", `"broken": `, "expected a JSON object of strings", `"still": its occurrence at 2026-01-01T00:00:00Z`, "schedules show -f ", "broken,still"},
		"tasks-not-listed":      {"2 tasks for odd and 1 task for x:bad", "tasks list --status pending -f ", "odd,x:bad"},
	} {
		for _, w := range want {
			if !strings.Contains(found[id], w) {
				t.Errorf("doctor, %s: %q, expected %q", id, found[id], w)
			}
		}
	}
	_, out, _ = b.run(t, "status", "-f", file, "--db", dbURL, "--json")
	var s struct {
		Tasks struct {
			Idle []struct{ Name, Reason string } `json:"idle_recurring"`
			List []struct {
				Destination string
				Pending     int
			} `json:"unlisted"`
		}
	}
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		t.Fatal(err)
	}
	if l := s.Tasks.Idle; len(l) != 2 || l[0].Name != "broken" || !strings.Contains(l[0].Reason, "expected a JSON object") || l[1].Name != "still" {
		t.Errorf("status: %+v", l)
	}
	if l := s.Tasks.List; len(l) != 2 || l[0].Destination != "odd" || l[0].Pending != 2 || l[1].Destination != "x:bad" || l[1].Pending != 1 {
		t.Errorf("status: %+v", l)
	}
	b.Close() // the database alone says it as well
	_, out, _ = b.run(t, "status", "-f", file, "--db", dbURL)
	for _, want := range []string{`the recurring task "broken" makes no tasks: `, "pending tasks for odd, which the file does not list: 2"} {
		if !strings.Contains(out, want) {
			t.Errorf("status:\n%s\nexpected %s", out, want)
		}
	}
}

// planned has a relay look once at the recurring tasks of a database.
func planned(t *testing.T, b *byHand, cfg schedule.Config, dbURL string) {
	t.Helper()
	db, _, err := config.OpenDB(config.URL(dbURL))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	client, err := amqpx.Open(t.Context(), amqpx.Config{URL: b.url})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close(context.Background()) }()
	s, err := schedule.New(db, client, cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	for range time.Tick(10 * time.Millisecond) {
		var n int
		if err := db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM rabbitdelay_schedules WHERE planned_version <> version").Scan(&n); err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			break
		}
	}
	stop()
	<-done
}

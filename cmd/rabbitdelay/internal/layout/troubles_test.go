package layout_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/clitest"
	"github.com/rabbitdelay/rabbitdelay/config"
)

// troubled returns a settings file and a database with tasks that will not be sent although no command has failed:
// recurring tasks that cannot be planned, and pending tasks for destinations that the file does not list.
func troubled(t *testing.T, b *clitest.Broker) (file, dbURL string) {
	t.Helper()
	dbURL = clitest.NewDB(t)
	file = filepath.Join(t.TempDir(), "delays.yaml")
	const yaml = "broker: {declare: listed}\nexchanges: [{name: x, type: topic}]\n" +
		"destinations: [{queue: q}, {exchange: x, routing_key: good}]\n"
	if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
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
	exec("INSERT INTO rabbitdelay_schedules (name, queue, cron, headers) " +
		"VALUES ('broken', 'q', '@hourly', 'null'), ('good', 'q', '@hourly', NULL)")
	exec("INSERT INTO rabbitdelay_schedules (name, queue, cron, planned_version, plan_at, next_at) "+
		"VALUES ('still', 'q', '@hourly', 1, ?, ?)",
		time.Now().Add(time.Hour).UnixMilli(), time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli())
	planned(t, b, dbURL)
	due := time.Now().Add(29 * 24 * time.Hour).UnixMilli()
	exec("INSERT INTO rabbitdelay_tasks (id, queue, due_at) VALUES ('odd1', 'odd', ?), ('odd2', 'odd', ?), ('ok', 'q', ?)", due, due, due)
	exec("INSERT INTO rabbitdelay_tasks (id, exchange, routing_key, due_at) VALUES ('k1', 'x', 'bad', ?), ('k2', 'x', 'good', ?)", due, due)
	return file, dbURL
}

// planned runs a relay until it has planned all recurring tasks in a database.
func planned(t *testing.T, b *clitest.Broker, dbURL string) {
	t.Helper()
	db, _, err := config.OpenDB(config.URL(dbURL))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	client, err := amqpx.Open(t.Context(), amqpx.Config{URL: b.URL})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close(context.Background()) }()
	s, err := schedule.New(db, client, schedule.Config{PollInterval: 10 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	clitest.Await(t, "all recurring tasks are planned", func() bool {
		var n int
		const behind = "SELECT COUNT(*) FROM rabbitdelay_schedules WHERE planned_version <> version"
		if err := db.QueryRowContext(t.Context(), behind).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n == 0
	})
	stop()
	<-done
}

func TestDoctorFindsTaskProblems(t *testing.T) {
	b := clitest.NewBroker(t, amqptest.Options{})
	file, dbURL := troubled(t, b)
	got := b.Run(t, "doctor", "-f", file, "--db", dbURL, "--json")
	var report struct {
		Findings []struct {
			ID, What, Fix string
			Objects       []string
		}
	}
	if err := json.Unmarshal([]byte(got.Stdout), &report); err != nil {
		t.Fatalf("the output is not JSON: %v: %s", err, got)
	}
	found := map[string]string{}
	for _, f := range report.Findings {
		found[f.ID] = f.What + " " + f.Fix + " " + strings.Join(f.Objects, ",")
	}
	for _, c := range []struct{ id, want string }{
		{"recurring-not-planned", "2 recurring tasks"},
		{"recurring-not-planned", `"broken": `},
		{"recurring-not-planned", "expected a JSON object of strings"},
		{"recurring-not-planned", `"still": the time of its occurrence at 2026-01-01T00:00:00Z`},
		{"recurring-not-planned", "schedules show -f "},
		{"recurring-not-planned", "broken,still"},
		{"tasks-not-listed", "2 tasks for odd and 1 task for x:bad"},
		{"tasks-not-listed", "tasks list --status pending -f "},
		{"tasks-not-listed", "odd,x:bad"},
	} {
		if !strings.Contains(found[c.id], c.want) {
			t.Errorf("finding %s: got %q, want %q in it", c.id, found[c.id], c.want)
		}
	}
}

func TestStatusShowsTaskProblems(t *testing.T) {
	b := clitest.NewBroker(t, amqptest.Options{})
	file, dbURL := troubled(t, b)
	got := b.Run(t, "status", "-f", file, "--db", dbURL, "--json")
	var s struct {
		Tasks struct {
			Idle []struct{ Name, Reason string } `json:"idle_recurring"`
			List []struct {
				Destination string
				Pending     int
			} `json:"unlisted"`
		}
	}
	if err := json.Unmarshal([]byte(got.Stdout), &s); err != nil {
		t.Fatalf("the output is not JSON: %v: %s", err, got)
	}
	idle := s.Tasks.Idle
	if len(idle) != 2 {
		t.Fatalf("got the idle recurring tasks %+v, want 2", idle)
	}
	if idle[0].Name != "broken" {
		t.Errorf("the first idle recurring task is %s, want broken", idle[0].Name)
	}
	if !strings.Contains(idle[0].Reason, "expected a JSON object") {
		t.Errorf(`the reason for broken is %q, want "expected a JSON object" in it`, idle[0].Reason)
	}
	if idle[1].Name != "still" {
		t.Errorf("the second idle recurring task is %s, want still", idle[1].Name)
	}
	unlisted := map[string]int{}
	for _, u := range s.Tasks.List {
		unlisted[u.Destination] = u.Pending
	}
	if len(unlisted) != 2 {
		t.Errorf("got the unlisted destinations %v, want 2", unlisted)
	}
	if n := unlisted["odd"]; n != 2 {
		t.Errorf("got %d tasks for odd, want 2", n)
	}
	if n := unlisted["x:bad"]; n != 1 {
		t.Errorf("got %d tasks for x:bad, want 1", n)
	}

	b.Close() // without the broker, status reports the same from the database
	text := b.Run(t, "status", "-f", file, "--db", dbURL).Stdout
	for _, want := range []string{
		`the recurring task "broken" creates no tasks: `,
		"pending tasks for odd, which is not listed in the file: 2",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("status without a broker: got\n%s\nwant %s in it", text, want)
		}
	}
}

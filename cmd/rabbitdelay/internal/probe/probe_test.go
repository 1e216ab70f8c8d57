package probe

import (
	"context"
	"database/sql"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	_ "github.com/rabbitdelay/rabbitdelay/config/sqlite"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

func TestMetrics(t *testing.T) {
	srv := amqptest.NewServer(amqptest.Options{})
	defer srv.Close()
	m, err := NewMetrics()
	if err != nil {
		t.Fatal(err)
	}
	client, err := amqpx.Open(t.Context(), amqpx.Config{URL: srv.URL(), Dial: srv.Dial, Hooks: []amqpx.Hook{m.Hook()}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close(context.Background()) }()
	db, err := sql.Open("sqlite", filepath.Join(t.TempDir(), "tasks.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := schedule.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	store, err := schedule.New(db, client, schedule.Config{Hooks: m.Hooks(schedule.Hooks{})})
	if err != nil {
		t.Fatal(err)
	}
	task := schedule.Task{ID: "a", Queue: "orders", DeliverAt: time.Now().Add(time.Hour)}
	if err := store.Schedule(t.Context(), schedule.NoTx, task); err != nil {
		t.Fatal(err)
	}
	if err := client.Send(t.Context(), amqpx.Message{Queue: "orders"}); err != nil {
		t.Fatal(err)
	}
	if err := m.Observe(client, store, []topology.Destination{{Queue: "orders"}}); err != nil {
		t.Fatal(err)
	}
	answer := httptest.NewRecorder()
	m.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
	text := answer.Body.String()
	for _, want := range []string{
		`messaging_client_operation_duration_seconds_count{messaging_destination_name="orders",messaging_operation_name="send",messaging_operation_type="send",messaging_system="rabbitmq"} 1`,
		`rabbitdelay_connection_state{rabbitdelay_connection="publish",rabbitdelay_state="connected"} 1`,
		`rabbitdelay_tasks_pending{rabbitdelay_horizon="1h"} 1`,
		`rabbitdelay_relay_backlog 1`,
		`rabbitdelay_relay_running 0`,
		`rabbitdelay_queue_ready{messaging_destination_name="orders"} 1`,
		"rabbitdelay_parked 0",
		"go_goroutines", "process_start_time_seconds",
	} {
		if !strings.Contains(text, "\n"+want) {
			t.Errorf("the metrics for Prometheus do not contain %s", want)
		}
	}
	if t.Failed() {
		t.Log(text)
	}
	if err := m.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

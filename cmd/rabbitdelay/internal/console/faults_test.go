package console

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/doctor"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/snapshot"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/status"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// looking returns the addresses of all pages and API resources that a viewer may read.
func (w *world) looking(who ...func(*http.Request)) []string {
	list := []string{"/", "/tasks", "/task?id=a", "/task?id=none", "/trace?id=a", "/trace?id=none", "/recurring", "/dead",
		"/dead-queue?queue=orders.dead", "/layouts", "/audit", "/job?id=j"}
	for _, c := range w.calls(who...) {
		if c.method == "GET" && c.path != "/api/v1/events" {
			list = append(list, strings.Replace(c.path, "/jobs/a", "/jobs/j", 1))
		}
	}
	return list
}

// A viewer sees which component does not answer and what still works, but not the errors of drivers, which contain user
// names and addresses.
func TestDriverErrorsAreHidden(t *testing.T) {
	secret := &net.OpError{Op: "dial", Net: "tcp", Addr: &net.TCPAddr{IP: net.IPv4(10, 9, 8, 7), Port: 5672}, Err: errors.New("refused for user shopuser")}
	hidden := []string{"10.9.8.7", "shopuser"}
	down := func(c *Config) {
		c.Broker = func(context.Context) (status.Source, error) {
			return status.Source{
				Want:   doctor.Config{Want: topology.Topology{Destinations: []topology.Destination{{Queue: "orders"}}}, Prefix: topology.DefaultPrefix},
				Broker: snapshot.Source{Dial: func(context.Context) (*amqp.Connection, error) { return nil, secret }, SkipClock: true},
			}, nil
		}
		c.Client = func() (*amqpx.Client, error) { return nil, secret }
		c.Problem = func() error { return fmt.Errorf("broker: %w", secret) }
		c.Identify = func(r *http.Request) (Identity, error) {
			return Identity{Name: "x", Role: Role(r.Header.Get("X-Role"))}, nil
		}
	}
	w := newWorld(t, down)
	check(t, w.store.Schedule(t.Context(), schedule.NoTx, schedule.Task{ID: "a", Queue: "orders", DeliverAt: time.Now().Add(time.Hour)}))
	_, err := w.db.ExecContext(t.Context(),
		"INSERT INTO rabbitdelay_audit (id, at, who, action, target, detail, error, result, request, place, state) "+
			"VALUES ('j', ?, 'anna', 'requeue', 'a', '', ?, '', '', '', 'failed')",
		time.Now().UnixMilli(), secret.Error())
	check(t, err)
	as := func(role Role) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set("X-Role", string(role)) }
	}
	for _, path := range w.looking(as(RoleViewer)) {
		text := string(w.ask("GET", path, "", as(RoleViewer)).text)
		if slices.ContainsFunc(hidden, func(s string) bool { return strings.Contains(text, s) }) {
			t.Errorf("%s as a viewer: got %s, want no addresses or user names of the driver", path, text)
		}
	}
	for path, want := range map[string]string{
		"/": "The broker does not answer. Nothing is sent or delivered, but tasks can still be viewed and changed.", "/dead-queue?queue=orders.dead": "The broker does not answer",
	} {
		for role, told := range map[Role]bool{RoleViewer: false, RoleOperator: true} {
			text := string(w.ask("GET", path, "", as(role)).text)
			if !strings.Contains(text, want) || strings.Contains(text, "10.9.8.7") != told {
				t.Errorf("%s as %s: got %s, want %q, with the driver's address = %t", path, role, text, want, told)
			}
		}
	}
	if text := string(w.ask("GET", "/job?id=j", "", as(RoleOperator)).text); !strings.Contains(text, "shopuser") {
		t.Errorf("the page of a failed job as an operator: got %s, want the driver's error", text)
	}
}

// A console without a broker does not report that the broker does not answer.
func TestConsoleWithoutABroker(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Broker, c.Client, c.Previous = nil, nil, nil })
	for path, want := range map[string]string{
		"/": "This console is not connected to a broker.", "/dead": "This console is not connected to a broker.", "/layouts": "This console is not connected to a broker.",
		"/dead-queue?queue=orders.dead": "is not connected to a broker", "/api/v1/status": "is not connected to a broker", "/trace?id=a": "is not connected to a broker",
	} {
		text := string(w.ask("GET", path, "").text)
		if !strings.Contains(text, want) {
			t.Errorf("%s: got %s, want %q in it", path, text, want)
		}
		for _, untrue := range []string{"does not answer", "could not be read", "Nothing is sent"} {
			if strings.Contains(text, untrue) {
				t.Errorf("%s: got %s, want no %q in it", path, text, untrue)
			}
		}
	}
}

package plugin_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/plugin"
)

func rabbit(version string) map[string]string {
	return map[string]string{"product": "RabbitMQ", "version": version}
}

func TestProbeFindsThePlugin(t *testing.T) {
	s := &server{properties: rabbit("3.13.7"), declare: (*writer).declareOK}
	if err := plugin.Probe(context.Background(), s.dial(t)); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.declared) != 1 || s.declared["delay.plugin.probe"] != "x-delayed-message" {
		t.Errorf("declared %v", s.declared)
	}
	if len(s.deleted) != 1 || s.deleted[0] != "delay.plugin.probe" || !s.goodbye {
		t.Errorf("deleted %v, connection closed in order: %v", s.deleted, s.goodbye)
	}
}

// A user without permission for the probe's name still learns that the type is
// known, because brokers check it first.
func TestProbeWithoutPermission(t *testing.T) {
	s := &server{properties: rabbit("3.13.7"), declare: func(w *writer) {
		w.closeChannel(403, "ACCESS_REFUSED - configure access to exchange 'delay.plugin.probe' in vhost '/' refused for user 'u'")
	}}
	if err := plugin.Probe(context.Background(), s.dial(t)); err != nil {
		t.Fatal(err)
	}
}

func TestProbeMissesThePlugin(t *testing.T) {
	for _, c := range []struct {
		name       string
		properties map[string]string
		declare    func(*writer)
		says       []string
		saysNot    string
	}{
		{
			"connection closed, as by 3.10", rabbit("3.10.8"),
			func(w *writer) {
				w.closeConnection(503, "COMMAND_INVALID - unknown exchange type 'x-delayed-message'")
			},
			[]string{"RabbitMQ 3.10.8", "rabbitmq-plugins enable"}, "cannot run it",
		},
		{
			"channel closed, as by 4.0", rabbit("4.0.5"),
			func(w *writer) {
				w.closeChannel(406, "PRECONDITION_FAILED - unknown exchange type 'x-delayed-message'")
			},
			[]string{"RabbitMQ 4.0.5", "rabbitmq-plugins enable"}, "cannot run it",
		},
		{
			"4.3", rabbit("4.3.6"),
			func(w *writer) {
				w.closeChannel(406, "PRECONDITION_FAILED - invalid exchange type 'x-delayed-message'")
			},
			[]string{"RabbitMQ 4.3.6", "cannot run it", "Mnesia", "RabbitMQ 4.3"}, "rabbitmq-plugins enable",
		},
		{
			"5.0", rabbit("5.0.0"),
			func(w *writer) {
				w.closeChannel(406, "PRECONDITION_FAILED - unknown exchange type 'x-delayed-message'")
			},
			[]string{"RabbitMQ 5.0.0", "cannot run it"}, "rabbitmq-plugins enable",
		},
		{
			"another broker", nil,
			func(w *writer) {
				w.closeConnection(503, "COMMAND_INVALID - unknown exchange type 'x-delayed-message'")
			},
			[]string{"the broker", "rabbitmq-plugins enable"}, "cannot run it",
		},
	} {
		s := &server{properties: c.properties, declare: c.declare}
		err := plugin.Probe(context.Background(), s.dial(t))
		var e *plugin.NotAvailableError
		var cause *amqp.Error
		if !errors.As(err, &e) || !errors.Is(err, plugin.ErrNotAvailable) || !errors.As(err, &cause) {
			t.Errorf("%s: got %v", c.name, err)
			continue
		}
		for _, want := range append(c.says, plugin.Name, "bucket", "ttl") {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q does not say %q", c.name, err, want)
			}
		}
		if strings.Contains(err.Error(), c.saysNot) {
			t.Errorf("%s: %q says %q", c.name, err, c.saysNot)
		}
	}
}

// Whatever else goes wrong is no statement about the plugin.
func TestProbeOtherErrors(t *testing.T) {
	for name, declare := range map[string]func(*writer){
		"other 406": func(w *writer) {
			w.closeChannel(406, "PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'delay.plugin.probe'")
		},
		"resource error": func(w *writer) { w.closeConnection(541, "INTERNAL_ERROR") },
	} {
		s := &server{properties: rabbit("4.0.5"), declare: declare}
		err := plugin.Probe(context.Background(), s.dial(t))
		var cause *amqp.Error
		if err == nil || errors.Is(err, plugin.ErrNotAvailable) || !errors.As(err, &cause) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	broken := errors.New("no route to host")
	err := plugin.Probe(context.Background(), func(context.Context) (*amqp.Connection, error) { return nil, broken })
	if !errors.Is(err, broken) || errors.Is(err, plugin.ErrNotAvailable) {
		t.Errorf("a failed dial gave %v", err)
	}
}

// A broker that does not answer holds a probe no longer than its context.
func TestProbeEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s := &server{properties: rabbit("4.0.5"), declare: func(*writer) { cancel() }}
	if err := plugin.Probe(ctx, s.dial(t)); !errors.Is(err, context.Canceled) || errors.Is(err, plugin.ErrNotAvailable) {
		t.Errorf("got %v", err)
	}
}

package live_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
)

const probed = "delay.plugin.probe"

// probe asks a broker for the plugin, and fails the test if the probe leaves its exchange behind.
func probe(t *testing.T, srv *amqptest.Server) error {
	t.Helper()
	err := live.ProbePlugin(t.Context(), func(context.Context) (*amqp.Connection, error) { return srv.Connect() })
	if slices.ContainsFunc(srv.Exchanges(), func(e amqptest.Exchange) bool { return e.Name == probed }) {
		t.Errorf("the exchange %s exists after the probe, want it deleted", probed)
	}
	return err
}

func TestProbeFindsThePlugin(t *testing.T) {
	srv := amqptest.NewServer(amqptest.Options{Version: "3.13.7", Plugin: true})
	defer srv.Close()
	if err := probe(t, srv); err != nil {
		t.Errorf("ProbePlugin: got %v, want no error", err)
	}
	for _, method := range []string{"exchange.declare", "exchange.delete", "connection.close"} {
		if n := srv.Calls(method); n != 1 {
			t.Errorf("ProbePlugin: got %d calls of %s, want 1", n, method)
		}
	}
}

// The probe works even for a user who has no permission for the name of its exchange, because brokers check the type
// first.
func TestProbeWithoutPermission(t *testing.T) {
	srv := amqptest.NewServer(amqptest.Options{Version: "3.13.7", Plugin: true})
	defer srv.Close()
	srv.Deny("guest", amqptest.PermissionConfigure, "plugin")
	if err := probe(t, srv); err != nil {
		t.Error(err)
	}
}

func TestProbeMissesThePlugin(t *testing.T) {
	const enable, impossible = "rabbitmq-plugins enable", "cannot run the plugin"
	for version, says := range map[string]string{"3.10.8": enable, "4.0.5": enable, "4.3.6": impossible, "5.0.0": impossible} {
		srv := amqptest.NewServer(amqptest.Options{Version: version})
		err := probe(t, srv)
		_, typed := errors.AsType[*live.NoPluginError](err)
		_, caused := errors.AsType[*amqp.Error](err)
		if !typed || !caused || !errors.Is(err, live.ErrNoPlugin) {
			t.Errorf("RabbitMQ %s: got %v, want a *NoPluginError with ErrNoPlugin and its cause", version, err)
			continue
		}
		for _, want := range []string{"RabbitMQ " + version, "rabbitmq_delayed_message_exchange", "bucket", "ttl", says} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("RabbitMQ %s: got %q, want an error with %q", version, err, want)
			}
		}
		if strings.Contains(err.Error(), enable) == strings.Contains(err.Error(), impossible) {
			t.Errorf("RabbitMQ %s: got %q, want either advice to enable the plugin, or that it cannot run", version, err)
		}
		srv.Close()
	}
	unknown := (&live.NoPluginError{Cause: amqp.ErrClosed}).Error()
	if !strings.HasPrefix(unknown, "the broker does not have") {
		t.Errorf("a broker that reports nothing about itself: got %q, want \"the broker does not have\" at the beginning", unknown)
	}
	if !strings.Contains(unknown, enable) {
		t.Errorf("a broker that reports nothing about itself: got %q, want the advice %q", unknown, enable)
	}
}

// Other errors do not show whether the broker has the plugin, so ProbePlugin returns them unchanged.
func TestProbeOtherErrors(t *testing.T) {
	for code, text := range map[int]string{
		amqp.PreconditionFailed: "inequivalent arg 'type' for exchange 'delay.plugin.probe'",
		amqp.InternalError:      "the connection is closed over it",
	} {
		srv := amqptest.NewServer(amqptest.Options{Version: "4.0.5", Plugin: true})
		srv.Refuse(probed, code, text)
		err := probe(t, srv)
		if _, caused := errors.AsType[*amqp.Error](err); !caused || errors.Is(err, live.ErrNoPlugin) {
			t.Errorf("ProbePlugin refused with %s: got %v, want the broker's error and not ErrNoPlugin", text, err)
		}
		srv.Close()
	}
	broken := errors.New("no route to host")
	err := live.ProbePlugin(t.Context(), func(context.Context) (*amqp.Connection, error) { return nil, broken })
	if !errors.Is(err, broken) || errors.Is(err, live.ErrNoPlugin) {
		t.Errorf("a failed dial: got %v, want %v and not live.ErrNoPlugin", err, broken)
	}
}

// If the broker does not answer, the probe returns when its context is cancelled.
func TestProbeEndsWithItsContext(t *testing.T) {
	srv := amqptest.NewServer(amqptest.Options{Version: "4.0.5", Plugin: true})
	defer srv.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	srv.Control(func(f amqptest.Frame) amqptest.Action {
		if f.Method != "exchange.declare" {
			return amqptest.Action{}
		}
		cancel()
		return amqptest.Action{Drop: true}
	})
	err := live.ProbePlugin(ctx, func(context.Context) (*amqp.Connection, error) { return srv.Connect() })
	if !errors.Is(err, context.Canceled) || errors.Is(err, live.ErrNoPlugin) {
		t.Errorf("ProbePlugin with a cancelled context: got %v, want context.Canceled and not live.ErrNoPlugin", err)
	}
}

package amqpx_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/zap"
	logs "go.uber.org/zap/zaptest/observer"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// A starting broker refuses all users. Open therefore tries again, and fails only if the refusal lasts for seconds.
func TestOpenWaitsForABrokerThatIsStarting(t *testing.T) {
	for _, c := range []struct {
		refused time.Duration
		opens   bool
	}{{0, true}, {time.Second, true}, {time.Minute, false}} {
		inMemory(t, func(t *testing.T, m *memory) {
			if c.refused > 0 {
				time.AfterFunc(c.refused, m.RefuseLogins())
			}
			began := time.Now()
			_, err := m.tryOpen(t.Context(), amqpx.Config{})
			if (err == nil) != c.opens {
				t.Errorf("refused for %v: got %v, want an error: %t", c.refused, err, !c.opens)
			}
			if took := time.Since(began); took > 6*time.Second { // 2 s, plus a pause between two attempts
				t.Errorf("refused for %v: Open took %v, want at most 6s", c.refused, took)
			}
			if err != nil && errors.Is(err, t.Context().Err()) {
				t.Errorf("refused for %v: got %v, want the broker's refusal and not the context's error", c.refused, err)
			}
		})
	}
}

// Open does not retry for long with a wrong password or a virtual host that does not exist.
func TestOpenIsRefused(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		ctx := m.within(time.Hour)
		began := time.Now()
		_, err := m.tryOpen(ctx, amqpx.Config{URL: strings.Replace(m.URL(), "guest:guest", "guest:secret", 1)})
		if err == nil || strings.Contains(err.Error(), "secret") || time.Since(began) > time.Minute {
			t.Errorf("Open with the wrong password: got %v after %v, want an error without the password within 1m", err, time.Since(began))
		}
		_, err = m.tryOpen(ctx, amqpx.Config{URL: strings.Replace(m.URL(), "/?", "/none?", 1)})
		if err == nil || !strings.Contains(err.Error(), "none") {
			t.Errorf("Open with a virtual host that does not exist: got %v, want an error that names it", err)
		}
	})
}

// Open fails immediately if existing objects conflict with the layout, even if the broker closes the connection. It
// does so if the client library sends an operation on a channel that the broker is closing.
func TestOpenFindsAConflict(t *testing.T) {
	ttl, err := dlx.NewTTL(dlx.TTLConfig{Delays: []time.Duration{time.Minute}}) // few queues, so one channel declares them
	if err != nil {
		t.Fatal(err)
	}
	for name, cfg := range map[string]amqpx.Config{"": {}, "closed connection": {Strategy: ttl}} {
		inMemory(t, func(t *testing.T, m *memory) {
			m.Declare("delay.parked", amqp.Table{"x-max-length": int64(1)})
			refusals := 0
			m.Control(func(f amqptest.Frame) amqptest.Action {
				if f.Method == "channel.close" && !f.FromClient {
					refusals++ // the first one reports that the topology does not exist
				}
				return amqptest.Action{Cut: name != "" && refusals > 1 && f.Method == "channel.open"}
			})
			_, err := m.tryOpen(t.Context(), cfg)
			if ce, ok := errors.AsType[*topology.ConflictError](err); !ok || ce.Name != "delay.parked" {
				t.Errorf(`Open, case %q: got %v, want a *topology.ConflictError with Name = "delay.parked"`, name, err)
			}
		})
	}
}

// If a client that declares nothing finds no layout, its error and its log line are short and say what to do.
func TestOpenBeforeAnythingIsApplied(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		core, seen := logs.New(zap.InfoLevel)
		_, err := m.tryOpen(m.within(time.Hour), amqpx.Config{Declare: amqpx.DeclareNothing, Logger: zap.New(core)})
		for _, part := range []string{"DeclareNothing", "rabbitdelay apply", "exchanges do not exist", "delay.deliver", "more"} {
			if err == nil || !strings.Contains(err.Error(), part) || len(err.Error()) > 500 {
				t.Fatalf("the error has %d bytes, want at most 500 and %q in it: %.1000v", len(fmt.Sprint(err)), part, err)
			}
		}
		lines := seen.All()
		if len(lines) != 1 || strings.Contains(lines[0].Message, "connect;") || len(fmt.Sprint(lines[0].ContextMap())) > 1000 {
			t.Errorf(`Open wrote the log lines %+v, want one without "connect;" and with at most 1000 bytes of fields`, lines)
		}
	})
}

// Without a logger, Open prints once why it is waiting. Its error contains the reason as well.
func TestOpenSaysWhyItWaits(t *testing.T) {
	before := slog.Default()
	defer slog.SetDefault(before)
	for name, test := range map[string]struct {
		logger *zap.Logger
		wait   time.Duration
		lines  int
	}{
		"short":         {nil, 2 * time.Second, 0},
		"long":          {nil, time.Minute, 1},
		"with a logger": {zap.NewNop(), time.Minute, 0},
	} {
		var out bytes.Buffer
		slog.SetDefault(slog.New(slog.NewTextHandler(&out, nil)))
		inMemory(t, func(t *testing.T, m *memory) {
			m.RefuseConnections()
			_, err := m.tryOpen(m.within(test.wait), amqpx.Config{Logger: test.logger})
			if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "connection refused") {
				t.Errorf(`%s: Open returned %v, want context.DeadlineExceeded with "connection refused"`, name, err)
			}
		})
		if text := out.String(); strings.Count(text, "\n") != test.lines || test.lines > 0 && !strings.Contains(text, "connection refused") {
			t.Errorf("%s: Open printed %q, want %d lines with the reason", name, text, test.lines)
		}
	}
}

// If an HTTP server answers instead of a broker, Open does not wait for its deadline, and its error says so.
func TestOpenEndsWithTheBrokersAnswer(t *testing.T) {
	srv := httptest.NewServer(nil)
	defer srv.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	_, err := amqpx.Open(ctx, amqpx.Config{URL: "amqp://" + srv.Listener.Addr().String() + "/", DialTimeout: time.Second})
	if e, ok := errors.AsType[*amqpx.DialError](err); !ok || !e.Final || !strings.Contains(e.Reason, "an HTTP server answered") || ctx.Err() != nil {
		t.Errorf(`Open on an HTTP server: got %v, want a final *amqpx.DialError with the reason "an HTTP server answered" before the deadline`, err)
	}
}

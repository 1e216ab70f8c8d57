package live_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/internal/naming"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// holding is a broker with the queues of the native strategy.
type holding struct {
	*amqptest.Server

	conn     *amqp.Connection
	strategy *dlx.Native
	latency  time.Duration
}

// onHolding runs a test in a bubble, on a broker with holding queues. If change is not nil, it can modify their
// topology before they are declared.
func onHolding(t *testing.T, opts amqptest.Options, change func(*topology.Topology), test func(t *testing.T, h *holding)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		srv := amqptest.NewServer(opts)
		defer srv.Close()
		conn, err := srv.Connect()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		s, err := dlx.NewNative(dlx.NativeConfig{})
		if err != nil {
			t.Fatal(err)
		}
		top := s.Topology()
		if change != nil {
			change(&top)
		}
		if _, err := (live.Broker{Conn: conn}).Apply(t.Context(), top, live.ApplyOptions{}); err != nil {
			t.Fatal(err)
		}
		test(t, &holding{srv, conn, s, opts.Latency})
	})
}

func (h *holding) prove(t *testing.T) (live.Clock, error) {
	t.Helper()
	began := time.Now()
	clock, err := live.Broker{Conn: h.conn}.Prove(t.Context(), "delay", h.strategy.Canary)
	if took := time.Since(began); took > 1600*time.Millisecond+30*h.latency {
		t.Errorf("the canary took %v, error %v, want at most %v", took, err, 1600*time.Millisecond+30*h.latency)
	}
	<-time.After(time.Hour) // messages in transit arrive, and leftovers expire
	synctest.Wait()
	for _, q := range h.Queues() {
		state, _ := h.Queue(q)
		if strings.HasPrefix(q, naming.CanaryQueue("delay")) || state.Ready+state.Delayed+state.DeadLetters > 0 {
			t.Errorf("after the canary: got the queue %s with %d ready, %d delayed and %d dead-lettered messages, want no canary queue and no messages", q, state.Ready, state.Delayed, state.DeadLetters)
		}
	}
	return clock, err
}

func TestCanaryProvesDelays(t *testing.T) {
	for _, latency := range []time.Duration{0, 5 * time.Millisecond, 150 * time.Millisecond} {
		onHolding(t, amqptest.Options{Version: "4.4.0", Latency: latency}, nil, func(t *testing.T, h *holding) {
			clock, err := h.prove(t)
			if err != nil || clock.Low > 0 || clock.High < 0 || clock.High-clock.Low > 2*latency+25*time.Millisecond {
				t.Errorf("latency %v: got %+v, error %v, want no error, Low of at most 0, High of at least 0, and a difference between them of at most %v",
					latency, clock, err, 2*latency+25*time.Millisecond)
			}
		})
	}
}

// The canary detects that a broker ignores delivery times, however slow the broker is and whatever its clock shows.
func TestCanaryRefusesBrokersThatIgnoreInstants(t *testing.T) {
	for _, version := range []string{"3.10.8", "4.0.5", "4.3.6"} {
		for _, opts := range []amqptest.Options{{}, {Latency: time.Second / 4}, {ClockAhead: 3 * time.Second}, {ClockAhead: -time.Minute}} {
			opts.Version = version
			onHolding(t, opts, nil, func(t *testing.T, h *holding) {
				_, err := h.prove(t)
				e, typed := errors.AsType[*live.InstantsIgnoredError](err)
				if !typed || !errors.Is(err, live.ErrInstantsIgnored) || e.Broker != "RabbitMQ "+version || !strings.Contains(err.Error(), "bucket") {
					t.Errorf("Prove with %+v: got %v, want an *InstantsIgnoredError that names the broker and recommends bucket", opts, err)
				}
			})
		}
	}
}

// The canary fails if a single queue ignores delivery times, such as a queue with an old state machine during a rolling
// upgrade, or a classic queue with the expected name.
func TestCanaryLooksIntoEachQueue(t *testing.T) {
	classic := func(top *topology.Topology) {
		for i := range top.Queues {
			if q := &top.Queues[i]; q.Name == "delay.native.3" {
				ttl := time.Duration(0)
				*q = topology.Queue{Name: q.Name, Type: topology.Classic, MessageTTL: &ttl, DeadLetter: &topology.DeadLetter{Exchange: "delay.deliver"}}
			}
		}
	}
	onHolding(t, amqptest.Options{Version: "4.4.0"}, classic, func(t *testing.T, h *holding) {
		_, err := h.prove(t)
		if e, ok := errors.AsType[*live.InstantsIgnoredError](err); !ok || e.Queue != "delay.native.3" {
			t.Errorf(`Prove with one classic queue: got %v, want a *live.InstantsIgnoredError with Queue = "delay.native.3"`, err)
		}
	})
}

func TestCanaryReadsTheClock(t *testing.T) {
	for _, ahead := range []time.Duration{
		10 * time.Millisecond, 150 * time.Millisecond, 400 * time.Millisecond, -400 * time.Millisecond, 3 * time.Second, -3 * time.Second, 9900 * time.Millisecond,
	} {
		onHolding(t, amqptest.Options{Version: "4.4.0", ClockAhead: ahead, Latency: 2 * time.Millisecond}, nil, func(t *testing.T, h *holding) {
			clock, err := h.prove(t)
			if err != nil || clock.Low > ahead || clock.High < ahead || clock.High-clock.Low > 40*time.Millisecond {
				t.Errorf("broker's clock ahead by %v: got %+v, error %v, want Low <= %v, High >= %v, High - Low <= 40ms and no error", ahead, clock, err, ahead, ahead)
			}
		})
	}
	for _, ahead := range []time.Duration{11 * time.Second, -11 * time.Second, 24 * time.Hour, -1000 * time.Hour} {
		onHolding(t, amqptest.Options{Version: "4.4.0", ClockAhead: ahead}, nil, func(t *testing.T, h *holding) {
			_, err := h.prove(t)
			e, ok := errors.AsType[*live.ClockError](err)
			if !ok || e.Low > ahead || e.High < ahead || !strings.Contains(err.Error(), "clock") {
				t.Errorf("broker's clock ahead by %v: got %v, want a *ClockError with bounds around this difference", ahead, err)
			}
		})
	}
}

// If the canary's messages are not delivered, the result is an error other than ErrInstantsIgnored, and messages that
// arrive later are not parked.
func TestCanaryWithoutAVerdict(t *testing.T) {
	for name, fault := range map[string]func(h *holding){
		"refused":  func(h *holding) { h.Nack("delay.native.2") },
		"returned": func(h *holding) { h.Return("delay.native.2") },
		"denied":   func(h *holding) { h.Deny("guest", amqptest.PermissionConfigure, `canary`) },
	} {
		onHolding(t, amqptest.Options{Version: "4.4.0"}, nil, func(t *testing.T, h *holding) {
			fault(h)
			_, err := live.Broker{Conn: h.conn}.Prove(t.Context(), "delay", h.strategy.Canary)
			<-time.After(time.Hour)
			synctest.Wait()
			parked, _ := h.Queue("delay.parked")
			if err == nil || errors.Is(err, live.ErrInstantsIgnored) || parked.Ready > 0 {
				t.Errorf("%s: Prove returned %v and %d messages are parked, want an error other than live.ErrInstantsIgnored, and 0", name, err, parked.Ready)
			}
		})
	}
}

// The error names the missing permission, even the permission to publish, for which the broker's only answer is to
// close the channel.
func TestCanaryWithoutAPermission(t *testing.T) {
	for _, c := range []struct {
		permission   amqptest.Permission
		kind, object string
	}{
		{amqptest.PermissionConfigure, "queue", "delay.canary."},
		{amqptest.PermissionWrite, "queue", "delay.canary."},
		{amqptest.PermissionRead, "queue", "delay.canary."},
		{amqptest.PermissionRead, "exchange", "delay.deliver"},
		{amqptest.PermissionWrite, "exchange", "delay.native.2"},
	} {
		onHolding(t, amqptest.Options{Version: "4.4.0"}, nil, func(t *testing.T, h *holding) {
			h.Deny("guest", c.permission, "^"+regexp.QuoteMeta(c.object))
			_, err := live.Broker{Conn: h.conn}.Prove(t.Context(), "delay", h.strategy.Canary)
			e, refused := errors.AsType[*amqp.Error](err)
			want := fmt.Sprintf("%s access to %s '%s", c.permission, c.kind, c.object)
			switch {
			case !refused, e.Code != amqp.AccessRefused:
				t.Errorf("Prove: got %v, want the broker's refusal (%d) with %q", err, amqp.AccessRefused, want)
			case !strings.Contains(e.Reason, want):
				t.Errorf("Prove: got %v, want the broker's refusal with %q", err, want)
			}
		})
	}
}

func TestProbeInstants(t *testing.T) {
	for version, want := range map[string]error{"3.10.8": live.ErrInstantsIgnored, "4.3.6": live.ErrInstantsIgnored, "4.4.0": nil} {
		synctest.Test(t, func(t *testing.T) {
			srv := amqptest.NewServer(amqptest.Options{Version: version})
			defer srv.Close()
			err := live.ProbeInstants(t.Context(), "delay", func(context.Context) (*amqp.Connection, error) { return srv.Connect() })
			if !errors.Is(err, want) {
				t.Errorf("RabbitMQ %s: ProbeInstants returned %v, want %v", version, err, want)
			}
			<-time.After(time.Hour)
			if left := srv.Queues(); len(left) > 0 || len(srv.Connections()) > 0 {
				t.Errorf("RabbitMQ %s: after the probe: got the queues %v and %d connections, want none", version, left, len(srv.Connections()))
			}
		})
	}
}

// A strategy without canary routes, as amqpx.Auto may be, needs no canary.
func TestProveNothing(t *testing.T) {
	onHolding(t, amqptest.Options{}, nil, func(t *testing.T, h *holding) {
		none := func(string) ([]topology.Binding, []topology.Route) { return nil, nil }
		if clock, err := (live.Broker{Conn: h.conn}).Prove(t.Context(), "delay", none); err != nil || clock != (live.Clock{}) {
			t.Errorf("Prove returned %v, %v, want the zero Clock and no error", clock, err)
		}
	})
}

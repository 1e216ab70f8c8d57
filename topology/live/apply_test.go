package live

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/argument"
	"github.com/rabbitdelay/rabbitdelay/topology/observed"
	"github.com/rabbitdelay/rabbitdelay/topology/plan"
	"github.com/rabbitdelay/rabbitdelay/topology/removal"
)

// blockedConn opens no channel until it is released.
type blockedConn struct{ release chan struct{} }

func (c blockedConn) Channel() (*amqp.Channel, error) {
	<-c.release
	return nil, amqp.ErrClosed
}

func TestApplyAndDestroyEndWithTheContext(t *testing.T) {
	top := topology.DeliveryTopology("p")
	for name, run := range map[string]func(context.Context, Conn) (Report, error){
		"apply": func(ctx context.Context, c Conn) (Report, error) {
			return Broker{Conn: c}.Apply(ctx, top, ApplyOptions{})
		},
		"destroy": func(ctx context.Context, c Conn) (Report, error) {
			return Broker{Conn: c}.Destroy(ctx, top, removal.Options{})
		},
	} {
		conn := blockedConn{make(chan struct{})}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		_, err := run(ctx, conn)
		cancel()
		close(conn.release)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

type deadConn struct{}

func (deadConn) Channel() (*amqp.Channel, error) { return nil, amqp.ErrClosed }

func TestApplyOnADeadConnectionTriesNothing(t *testing.T) {
	top := topology.DeliveryTopology("p")
	report, err := Broker{Conn: deadConn{}}.Apply(t.Context(), top, ApplyOptions{})
	if !errors.Is(err, amqp.ErrClosed) || report.Count(StateUnknown) != 2 || report.Count(StateUntried) != 2 {
		t.Errorf("got %s, %v", report, err)
	}
	invalid := topology.Topology{Queues: []topology.Queue{{Name: "amq.q"}}}
	if _, err := (Broker{Conn: deadConn{}}).Apply(t.Context(), invalid, ApplyOptions{}); !errors.Is(err, topology.ErrInvalid) {
		t.Errorf("an invalid topology gave %v", err)
	}
}

type fixedInspector struct {
	live observed.Broker
	err  error
}

func (i fixedInspector) Inspect(context.Context, topology.Topology) (observed.Broker, error) {
	return i.live, i.err
}

// With an inspector, what is wrong is said before anything is touched.
func TestApplyAsksTheInspectorFirst(t *testing.T) {
	minute := time.Minute
	top := topology.Topology{Queues: []topology.Queue{{Name: "q", MessageTTL: &minute, DeadLetter: &topology.DeadLetter{}}}}
	broken := errors.New("no answer")
	for name, c := range map[string]struct {
		insp fixedInspector
		want error
	}{
		"error":    {fixedInspector{err: broken}, broken},
		"conflict": {fixedInspector{live: observed.Broker{Queues: map[string]observed.Queue{"q": {Mismatches: []argument.Mismatch{{Argument: "x"}}}}}}, plan.ErrConflict},
		"policy": {fixedInspector{live: observed.Broker{Policies: []observed.Policy{
			{Name: "p", Pattern: "q", ApplyTo: "all", Definition: map[string]any{"expires": 1}},
		}}}, plan.ErrPolicy},
	} {
		report, err := Broker{Conn: deadConn{}, Inspector: c.insp}.Apply(t.Context(), top, ApplyOptions{})
		if !errors.Is(err, c.want) || report.Count(StateUntried) != 1 {
			t.Errorf("%s: %s, %v", name, report, err)
		}
	}
}

func TestWhichRefusalsMayPass(t *testing.T) {
	a := &applier{names: map[string]bool{"x": true, "q": true}}
	binding := declaration{kind: topology.KindBinding, needs: []string{"x", "q"}}
	for name, c := range map[string]struct {
		object declaration
		err    error
		want   bool
	}{
		"queue being made":       {binding, &amqp.Error{Code: amqp.NotFound}, true},
		"stranger missing":       {declaration{kind: topology.KindBinding, needs: []string{"x", "stranger"}}, &amqp.Error{Code: amqp.NotFound}, false},
		"conflict":               {declaration{kind: topology.KindQueue}, &amqp.Error{Code: amqp.PreconditionFailed, Reason: "inequivalent arg 'timeout' for queue 'timeout' in"}, false},
		"metadata store is slow": {declaration{kind: topology.KindQueue}, &amqp.Error{Code: amqp.PreconditionFailed, Reason: "operation timed out"}, true},
		"no permission":          {declaration{kind: topology.KindQueue}, &amqp.Error{Code: amqp.AccessRefused}, false},
		"network":                {declaration{kind: topology.KindQueue}, errors.New("reset"), false},
	} {
		if got := a.mayPass(c.object, c.err); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestARefusalTellsMoreThanALostConnection(t *testing.T) {
	lost := &amqp.Error{Code: amqp.ChannelError, Reason: "expected 'channel.open'"}
	refused := &amqp.Error{Code: amqp.PreconditionFailed}
	for want, errs := range map[error][]error{
		nil:     {nil, nil},
		lost:    {nil, lost, errors.New("reset")},
		refused: {lost, nil, refused, lost},
	} {
		if got := telling(errs); !errors.Is(got, want) {
			t.Errorf("%v: got %v, want %v", errs, got, want)
		}
	}
}

// Arguments that came from Go may be ints, of which amqp091 would write 32 bits.
func TestArgumentsKeepTheirSize(t *testing.T) {
	got := table(map[string]any{"n": 5_000_000_000, "in": map[string]any{"a": []any{5_000_000_000, "text"}}})
	want := amqp.Table{"n": int64(5_000_000_000), "in": amqp.Table{"a": []any{int64(5_000_000_000), "text"}}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %#v", got)
	}
}

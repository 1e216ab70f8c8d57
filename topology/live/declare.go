package live

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/live/wait"
)

const (
	// declareTries bounds the tries of one declaration that failed for a reason
	// that passes, such as two processes creating one quorum queue.
	declareTries = 6
	// The pauses between them.
	firstPause, lastPause = 100 * time.Millisecond, 2 * time.Second
)

type declaration struct {
	kind  topology.Kind
	name  string
	table map[string]any
	needs []string // names of objects that must exist before
	// exchangeType is the type of an exchange.
	exchangeType string
	declare      func(ch *amqp.Channel, noWait bool) error
}

// declarations are stage by stage what there is to declare. Those of one stage do not depend on each other.
func declarations(t topology.Topology) [][]declaration {
	var exchanges, queues, bindings []declaration
	for _, e := range t.Exchanges {
		exchanges = append(exchanges, declaration{
			kind: topology.KindExchange, name: e.Name, table: e.Table(), exchangeType: e.Kind,
			declare: func(ch *amqp.Channel, noWait bool) error { return declareExchange(ch, e, noWait) },
		})
	}
	for _, q := range t.Queues {
		queues = append(queues, declaration{
			kind: topology.KindQueue, name: q.Name, table: q.Table(),
			declare: func(ch *amqp.Channel, noWait bool) error { return declareQueue(ch, q, noWait) },
		})
	}
	for _, b := range t.Bindings {
		bindings = append(bindings, declaration{
			kind: topology.KindBinding, name: b.String(), needs: []string{b.Exchange, b.Queue + b.ToExchange},
			declare: func(ch *amqp.Channel, noWait bool) error { return bind(ch, b, noWait) },
		})
	}
	return [][]declaration{exchanges, queues, bindings}
}

// declare runs one stage: pipelined, and if that fails one by one, so that the error names the object.
func (a *applier) declare(ctx context.Context, stage []declaration, results []Result) error {
	reason := a.pipelined(ctx, stage)
	if reason == nil {
		for i := range results {
			results[i].State = StateDeclared
		}
		return nil
	}
	if err := context.Cause(ctx); err != nil {
		setStates(results, StateUnknown)
		return err
	}
	s := &session{conn: a.Conn}
	defer s.close()
	var errs []error
	for i, o := range stage {
		err := a.declareOne(ctx, s, o)
		switch {
		case err == nil:
			results[i].State = StateDeclared
		case context.Cause(ctx) != nil:
			setStates(results[i:], StateUnknown)
			return errors.Join(append(errs, context.Cause(ctx))...)
		case isConnectionLost(err):
			setStates(results[i:], StateUnknown)
			return errors.Join(append(errs, a.connectionLost(stage, results, reason, err))...)
		default:
			results[i].State = StateFailed
			errs = append(errs, objectError(o.kind, o.name, "declare", o.table, err))
		}
	}
	if more := len(errs) - mostErrors; more > 0 {
		errs = append(errs[:mostErrors], fmt.Errorf("and %d more", more))
	}
	return errors.Join(errs...)
}

// mostErrors is how many refusals of a stage its error names: one missing right
// refuses every object of a layout. The results have the others.
const mostErrors = 5

func setStates(results []Result, s State) {
	for i := range results {
		results[i].State = s
	}
}

// pipelined declares without waiting for each answer; a last operation with an answer shows that all went well.
func (a *applier) pipelined(ctx context.Context, stage []declaration) error {
	errs := make([]error, len(stage)) // of a run, at its beginning
	onChannels(a.Conn, len(stage), func(s *session, from, to int) {
		errs[from] = s.do(ctx, func(ch *amqp.Channel) error {
			return fenced(ch, func() error {
				for _, o := range stage[from:to] {
					if err := o.declare(ch, true); err != nil {
						return err
					}
				}
				return ch.Qos(0, 0, false) // answered after everything before it
			})
		})
	})
	return telling(errs)
}

// telling is the first refusal, else the first loss of the connection: the one may
// have been the reason of the other.
func telling(errs []error) error {
	for _, err := range errs {
		if err != nil && !isConnectionLost(err) {
			return err
		}
	}
	return cmp.Or(errs...)
}

// fenced runs operations without an answer and a last one with, and gives the
// broker's reason when one of them closed the channel.
func fenced(ch *amqp.Channel, ops func() error) error {
	closed := ch.NotifyClose(make(chan *amqp.Error, 1))
	err := ops()
	if err != nil && ch.IsClosed() {
		if reason := <-closed; reason != nil {
			return reason
		}
	}
	return err
}

func (a *applier) declareOne(ctx context.Context, s *session, o declaration) error {
	for try := 1; ; try++ {
		err := s.do(ctx, func(ch *amqp.Channel) error { return o.declare(ch, false) })
		if err == nil || try == declareTries || !a.mayPass(o, err) {
			return err
		}
		if wait.For(ctx, wait.Backoff(firstPause, lastPause, try)) != nil {
			return context.Cause(ctx)
		}
	}
}

// mayPass reports whether a refusal may be over soon: a timeout of the broker's
// metadata store or of a queue's leader, or an object that is missing although
// it belongs to this topology, because another process is making it.
func (a *applier) mayPass(o declaration, err error) bool {
	e, answered := errors.AsType[*amqp.Error](err)
	if _, conflict := parseInequivalent(err, o.table); conflict || !answered {
		return false
	}
	switch e.Code {
	case amqp.NotFound:
		for _, name := range o.needs {
			if name != "" && !a.names[name] && !strings.HasPrefix(name, "amq.") {
				return false
			}
		}
		return true
	case amqp.ResourceLocked, amqp.PreconditionFailed:
		return strings.Contains(e.Reason, "timeout") || strings.Contains(e.Reason, "timed out")
	}
	return false
}

// isConnectionLost distinguishes an error of the whole connection, after which no
// channel can be opened, from one of a channel.
func isConnectionLost(err error) bool {
	e, answered := errors.AsType[*amqp.Error](err)
	if !answered {
		return true // of the network
	}
	switch e.Code {
	case amqp.ConnectionForced, amqp.FrameError, amqp.SyntaxError, amqp.CommandInvalid, amqp.ChannelError,
		amqp.UnexpectedFrame, amqp.ResourceError, amqp.NotAllowed, amqp.NotImplemented, amqp.InternalError:
		return true
	}
	return false
}

// connectionLost names the object that the broker refused before the connection ended, where the
// broker says it: before 4.0 an unknown exchange type ends it, and so does an operation that the
// client library sends right after the broker has closed the channel for the one before.
func (a *applier) connectionLost(stage []declaration, results []Result, reason, err error) error {
	e, answered := errors.AsType[*amqp.Error](reason)
	if !answered {
		reason = err
		e, answered = errors.AsType[*amqp.Error](reason)
	}
	if !answered {
		return fmt.Errorf("apply: the connection was lost: %w", reason)
	}
	for i, o := range stage {
		_, conflict := parseInequivalent(e, o.table)
		if o.kind == topology.KindExchange && strings.Contains(e.Reason, "unknown exchange type '"+o.exchangeType+"'") ||
			conflict && strings.Contains(e.Reason, fmt.Sprintf("%s '%s' in vhost", o.kind, o.name)) {
			results[i].State = StateFailed
			return objectError(o.kind, o.name, "declare", o.table, reason)
		}
	}
	return fmt.Errorf("apply: the connection was lost: %w", reason)
}

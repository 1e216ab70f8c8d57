package service

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/faketime"
)

// Part is something that a service runs until ctx ends. It then finishes what it has begun and returns. An error
// ends the service; nil does not.
type Part func(ctx context.Context) error

// Consume returns the part that consumes a queue; see amqpx.Client.Consume.
func (s *Service) Consume(queue string, handler amqpx.Handler, opts ...amqpx.ConsumeOption) Part {
	return func(ctx context.Context) error { return s.Client.Consume(ctx, queue, handler, opts...) }
}

// Run runs the parts, and on a database the relay of tasks (schedule.Store.Run) and the purge of idempotency's
// records, until a part fails for good, ctx ends, or the process gets SIGTERM or SIGINT. Then it ends in order
// and closes what Open opened: first all parts end what they take in and finish what they have begun, which may
// send and schedule meanwhile; then what was sent is confirmed; then the connections and the database are closed.
// That takes DrainTimeout at most. A second signal cuts it short, a third ends the process at once.
//
// It returns nil when it was asked to stop and all was finished; see the package's comment.
func (s *Service) Run(ctx context.Context, parts ...Part) error {
	running, end := context.WithCancelCause(ctx)
	defer end(nil)
	drain, force := context.WithCancelCause(context.WithoutCancel(ctx))
	defer force(nil)
	defer s.onSignals(end, force)()
	errs, idle := s.start(running, end, append(parts, s.own()...))
	select {
	case <-running.Done():
	case <-idle: // nothing is left to run
	}
	s.stopping.Store(true)
	s.Logger.Info("stopping", zap.NamedError("reason", context.Cause(running)), zap.Duration("within", s.drain))
	timer := time.AfterFunc(s.drain, func() { force(errDrained) })
	defer timer.Stop()
	end(nil)
	select {
	case <-idle:
	case <-drain.Done():
	}
	closed := errors.Join(s.Close(drain), context.Cause(drain))
	select {
	case <-idle:
	case <-time.After(abandon):
		return fmt.Errorf("parts of the service still run: %w", closed)
	}
	err := errors.Join(append(errs, closed)...)
	s.Logger.Info("stopped", zap.Error(err))
	return err
}

// abandon is how long Run waits for parts that do not notice that the drain time is over.
const abandon = 3 * time.Second

// ErrCutOff is in Run's error when the end of the process did not wait for all that ran. Its messages come again.
var ErrCutOff = errors.New("what still ran was cut off")

var (
	errDrained = fmt.Errorf("%w: the drain time is over", ErrCutOff)
	errForced  = fmt.Errorf("%w: a second signal", ErrCutOff)
)

// start runs the parts, and closes idle when none runs any more. errs are then complete.
func (s *Service) start(ctx context.Context, end context.CancelCauseFunc, parts []Part) (errs []error, idle <-chan struct{}) {
	errs = make([]error, len(parts))
	var wg sync.WaitGroup
	for i, part := range parts {
		wg.Go(func() {
			if errs[i] = part(ctx); errs[i] != nil {
				s.Logger.Error("a part of the service has failed, which ends it", zap.Error(errs[i]))
				end(errs[i])
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	return errs, done
}

// own are the parts that a database asks for.
func (s *Service) own() []Part {
	if s.Tasks == nil {
		return nil
	}
	return []Part{
		func(ctx context.Context) error {
			if err := s.Tasks.Run(ctx); err != nil {
				return fmt.Errorf("relay: %w", err)
			}
			return nil
		},
		func(ctx context.Context) error {
			return idempotency.RunPurge(ctx, s.database, idempotency.Retention{}, func(n int64, err error) {
				if err != nil {
					s.Logger.Warn("deleting old records of messages failed; it is tried again", zap.Int64("deleted", n), zap.Error(err))
				}
			})
		},
	}
}

// onSignals ends the service at the first signal, and its drain time at the second. In a testing/synctest bubble,
// in which Go can not wait for signals, it does nothing.
func (s *Service) onSignals(end, force context.CancelCauseFunc) (stop func()) {
	if faketime.Inside() {
		return func() {}
	}
	signals, done := make(chan os.Signal, 2), make(chan struct{})
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	var wg sync.WaitGroup
	wg.Go(func() {
		for _, then := range []func(os.Signal){
			func(sig os.Signal) { end(fmt.Errorf("signal: %v", sig)) },
			func(os.Signal) { force(errForced) },
		} {
			select {
			case sig := <-signals:
				then(sig)
			case <-done:
				return
			}
		}
		signal.Stop(signals) // the next one has its usual effect
		<-done
	})
	return func() { signal.Stop(signals); close(done); wg.Wait() }
}

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
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/guard"
	"github.com/rabbitdelay/rabbitdelay/config"
)

// Part is a part of a service that runs until ctx ends, and then finishes its work and returns. If it returns an error,
// the service stops. If it returns nil, the other parts continue. A panic in a part is treated like an error.
type Part func(ctx context.Context) error

// Consume returns a part that consumes a queue; see amqpx.Client.Consume.
func (s *Service) Consume(queue string, handler amqpx.Handler, opts ...amqpx.ConsumeOption) Part {
	return func(ctx context.Context) error { return s.Client.Consume(ctx, queue, handler, opts...) }
}

// Run runs the given parts. With a database it also runs the relay of tasks (schedule.Store.Run) and the purge of
// idempotency records. It runs until a part fails permanently, all parts have returned, ctx ends, or the process
// receives SIGTERM or SIGINT. It then shuts down in order and closes what Open has opened. First, all parts stop
// accepting work and finish what they have started. During that time they may still send and schedule. Then Run waits
// until sent messages are confirmed, and finally the connections and the database are closed. The shutdown takes at
// most DrainTimeout. A second signal cuts it short, and a third terminates the process immediately.
//
// Run returns nil if no part failed and everything was finished; see the package comment.
func (s *Service) Run(ctx context.Context, parts ...Part) error {
	running, end := context.WithCancelCause(ctx)
	defer end(nil)
	drain, force := context.WithCancelCause(context.WithoutCancel(ctx))
	defer force(nil)
	defer s.onSignals(end, force)()
	errs, idle := s.start(running, end, append(parts, s.own()...))
	select {
	case <-running.Done():
	case <-idle: // all parts have returned
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
		return fmt.Errorf("parts of the service are still running: %w", closed)
	}
	err := errors.Join(append(errs, closed)...)
	s.Logger.Info("stopped", zap.Error(err))
	return err
}

// abandon is how long Run waits for parts that do not return after the drain timeout.
const abandon = 3 * time.Second

// ErrCutOff is wrapped by Run's error if the shutdown did not wait for everything that was running. Messages that were
// cut off are delivered again.
var ErrCutOff = errors.New("running work was cut off")

var (
	errDrained = fmt.Errorf("%w at the end of the drain time", ErrCutOff)
	errForced  = fmt.Errorf("%w by a second signal", ErrCutOff)
)

// start runs the parts, and closes idle when all of them have returned. The slice errs may be read after that. If a
// part fails, start calls end with its error.
func (s *Service) start(ctx context.Context, end context.CancelCauseFunc, parts []Part) (errs []error, idle <-chan struct{}) {
	errs = make([]error, len(parts))
	var wg sync.WaitGroup
	for i, part := range parts {
		wg.Go(func() {
			if errs[i] = s.runPart(ctx, i, part); errs[i] != nil {
				s.Logger.Error("a part of the service failed; stopping the service", zap.Error(errs[i]))
				end(errs[i])
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	return errs, done
}

// runPart runs one part. If it panics, the panic is its error, so that the other parts finish their work.
func (s *Service) runPart(ctx context.Context, i int, part Part) (err error) {
	if part == nil {
		return fmt.Errorf("%w: part %d of Run is nil; expected a function, such as the result of Consume or ServeHTTP", config.ErrConfig, i+1)
	}
	if p := guard.Call(s.Logger, fmt.Sprintf("part %d of the service", i+1), func() { err = part(ctx) }); p != nil {
		return p
	}
	return err
}

// own returns the parts that run if the service has a database.
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
					s.Logger.Warn("could not delete old records of messages; trying again", zap.Int64("deleted", n), zap.Error(err))
				}
			})
		},
	}
}

// onSignals stops the service at the first signal, and ends the drain at the second. In virtual time it has no effect.
func (s *Service) onSignals(end, force context.CancelCauseFunc) (stop func()) {
	if s.virtual {
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
		signal.Stop(signals) // from now on signals have their default effect
		<-done
	})
	return func() { signal.Stop(signals); close(done); wg.Wait() }
}

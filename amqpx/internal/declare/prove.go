package declare

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/wire"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/internal/naming"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// proof records that test messages were delayed until a given time. It is valid for one connection, until something is
// declared again.
type proof struct {
	// ahead is the greatest number of milliseconds by which the broker's clock may be ahead of this process's clock, or
	// 0 if it is not certain to be ahead.
	ahead int64
}

// errUnproven is returned while the client is still testing whether the broker delays until a given time. The caller
// should try again.
var errUnproven = errors.New("still testing whether the broker delays messages until a given time")

// Instant converts a time of this process's clock to the broker's clock, both in epoch ms.
func (s *Session) Instant(aim int64) (int64, error) {
	p := s.proof.Load()
	if p == nil {
		return 0, errUnproven
	}
	return aim + p.ahead, nil
}

// canary is a Strategy whose delays have to be proven; see amqpx.InstantProber.
type canary interface {
	Canary(queue string) ([]topology.Binding, []topology.Route)
}

// canaryOf returns the strategy's function for the test routes, or nil if the strategy needs no test.
func (c *Declarer) canaryOf() func(queue string) ([]topology.Binding, []topology.Route) {
	s, ok := c.cfg.Strategy.(canary)
	if !ok {
		return nil
	}
	if _, routes := s.Canary(naming.CanaryQueue(c.cfg.Strategy.Prefix())); len(routes) == 0 {
		return nil
	}
	return s.Canary
}

// Prove checks whether the session's broker delays messages until a given time, if the strategy depends on that. It
// publishes on the session's own connection, because the broker may block a connection that publishes, and the
// connection for declarations must never be blocked.
func (c *Declarer) Prove(ctx context.Context, sess *Session) error {
	canary := c.canaryOf()
	if canary == nil {
		return nil
	}
	began := time.Now()
	clock, err := live.Broker{Conn: sess.Conn}.Prove(ctx, c.cfg.Strategy.Prefix(), canary)
	if err != nil {
		if reason := c.cfg.Alarm(); reason != "" {
			err = fmt.Errorf("%w (%s): %w", wire.ErrBlocked, reason, err)
		}
		return fmt.Errorf("testing whether the broker delays messages for the %s strategy: %w", c.cfg.Strategy.Name(), err)
	}
	p := &proof{}
	if clock.Low > 0 {
		p.ahead = int64((clock.High + time.Millisecond - 1) / time.Millisecond)
	}
	sess.proof.Store(p)
	if clock.Low > 0 || clock.High < 0 {
		c.log.Warn("the broker's clock differs from this machine's clock; messages may be late by the difference, but not early", zap.Duration("ahead_at_least", clock.Low), zap.Duration("ahead_at_most", clock.High))
	}
	c.log.Debug("the broker delays messages until a given time", zap.String("strategy", c.cfg.Strategy.Name()), zap.Duration("took", time.Since(began)))
	return nil
}

// unprove stops messages that are due at a given time from being sent until the session is proven again. It returns nil
// if there is nothing to prove.
func (c *Declarer) unprove() *Session {
	sess, ok := c.cfg.Current()
	if !ok || c.canaryOf() == nil {
		return nil
	}
	sess.proof.Store(nil)
	return sess
}

package amqpx

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/live"
)

// proof says that on a connection, and until something is declared anew, the
// broker delays by an instant.
type proof struct {
	// ahead is what an instant of this process's clock lacks by the broker's, in ms,
	// where that is ahead; else 0.
	ahead int64
}

// errUnproven says that it is being found out whether the broker delays by an
// instant. Whoever has it tries again.
var errUnproven = errors.New("it is not proven yet that the broker delays by an instant")

// instant is an instant of this process's clock by the broker's, both in epoch ms.
func (s *session) instant(aim int64) (int64, error) {
	p := s.proof.Load()
	if p == nil {
		return 0, errUnproven
	}
	return aim + p.ahead, nil
}

// canary is nil if the strategy has nothing to prove.
func (c *Client) canary() func(queue string) ([]topology.Binding, []topology.Route) {
	s, ok := c.strategy.(Canary)
	if !ok {
		return nil
	}
	if _, routes := s.Canary(topology.CanaryQueue(c.strategy.Prefix())); len(routes) == 0 {
		return nil
	}
	return s.Canary
}

// prove finds out whether the broker of a session delays by an instant, where the
// strategy needs that. It publishes on the session's own connection: one for
// declarations must never be blocked for having published.
func (c *Client) prove(ctx context.Context, sess *session) error {
	ways := c.canary()
	if ways == nil {
		return nil
	}
	began := time.Now()
	clock, err := live.Broker{Conn: sess.conn}.Prove(ctx, c.strategy.Prefix(), ways)
	if err != nil {
		if reason := c.pub.blockedReason(); reason != "" {
			err = fmt.Errorf("%w (%s): %w", ErrBlocked, reason, err)
		}
		return fmt.Errorf("prove that the %s strategy delays: %w", c.strategy.Name(), err)
	}
	p := &proof{}
	if clock.Low > 0 {
		p.ahead = ceilMilli(time.UnixMilli(0).Add(clock.High))
	}
	sess.proof.Store(p)
	if clock.Low > 0 || clock.High < 0 {
		c.log.Warn("the broker's clock is not this machine's; messages are late by the difference, not early", zap.Duration("ahead_at_least", clock.Low), zap.Duration("ahead_at_most", clock.High))
	}
	c.log.Debug("proven", zap.String("strategy", c.strategy.Name()), zap.Duration("took", time.Since(began)))
	return nil
}

// unprove holds back what is to be sent by an instant until the session is proven
// again; nil where there is nothing to prove.
func (c *Client) unprove() *session {
	sess := c.pub.current()
	if sess == nil || c.canary() == nil {
		return nil
	}
	sess.proof.Store(nil)
	return sess
}

// isUnproven tells that the broker, or the clocks, are not as the strategy needs
// them.
func isUnproven(err error) bool {
	_, clock := errors.AsType[*live.ClockError](err)
	return clock || errors.Is(err, live.ErrInstantsIgnored)
}

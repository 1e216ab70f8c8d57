package declare

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/wire"
	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/live"
	"github.com/rabbitdelay/rabbitdelay/topology/naming"
)

// proof means that on a connection, and until something is declared anew, the
// broker delays by an instant.
type proof struct {
	// ahead is what an instant of this process's clock lacks by the broker's, in ms,
	// where that is ahead; else 0.
	ahead int64
}

// errUnproven is the error while it is being found out whether the broker delays by an
// instant. Whoever has it tries again.
var errUnproven = errors.New("it is not proven yet that the broker delays by an instant")

// Instant returns an instant of this process's clock by the broker's, both in epoch ms.
func (s *Session) Instant(aim int64) (int64, error) {
	p := s.proof.Load()
	if p == nil {
		return 0, errUnproven
	}
	return aim + p.ahead, nil
}

// canary is a Strategy that has something to prove; see amqpx.Canary.
type canary interface {
	Canary(queue string) ([]topology.Binding, []topology.Route)
}

// ways returns the ways that are to be proven; nil if there are none.
func (c *Declarer) ways() func(queue string) ([]topology.Binding, []topology.Route) {
	s, ok := c.cfg.Strategy.(canary)
	if !ok {
		return nil
	}
	if _, routes := s.Canary(naming.CanaryQueue(c.cfg.Strategy.Prefix())); len(routes) == 0 {
		return nil
	}
	return s.Canary
}

// Prove finds out whether the broker of a session delays by an instant, where the
// strategy needs that. It publishes on the session's own connection: one for
// declarations must never be blocked for having published.
func (c *Declarer) Prove(ctx context.Context, sess *Session) error {
	ways := c.ways()
	if ways == nil {
		return nil
	}
	began := time.Now()
	clock, err := live.Broker{Conn: sess.Conn}.Prove(ctx, c.cfg.Strategy.Prefix(), ways)
	if err != nil {
		if reason := c.cfg.Alarm(); reason != "" {
			err = fmt.Errorf("%w (%s): %w", wire.ErrBlocked, reason, err)
		}
		return fmt.Errorf("prove that the %s strategy delays: %w", c.cfg.Strategy.Name(), err)
	}
	p := &proof{}
	if clock.Low > 0 {
		p.ahead = int64((clock.High + time.Millisecond - 1) / time.Millisecond)
	}
	sess.proof.Store(p)
	if clock.Low > 0 || clock.High < 0 {
		c.log.Warn("the broker's clock is not this machine's; messages are late by the difference, not early", zap.Duration("ahead_at_least", clock.Low), zap.Duration("ahead_at_most", clock.High))
	}
	c.log.Debug("proven", zap.String("strategy", c.cfg.Strategy.Name()), zap.Duration("took", time.Since(began)))
	return nil
}

// unprove holds back what is to be sent by an instant until the session is proven
// again; nil where there is nothing to prove.
func (c *Declarer) unprove() *Session {
	sess, ok := c.cfg.Current()
	if !ok || c.ways() == nil {
		return nil
	}
	sess.proof.Store(nil)
	return sess
}

package consume

import (
	"context"
	"errors"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/inner"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/wire"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Replacements returns every kind of message that a consumer can publish in place of a received one.
func Replacements(raw amqp.Delivery, s Strategy) []inner.Copy {
	all := NewConsumers(Config{Strategy: s, Now: time.Now, Log: zap.NewNop(), Over: context.Background(), Wire: wire.Config{Nodes: []string{""}, Log: zap.NewNop()}, Changed: func(string) func(wire.Event) { return nil }})
	k := all.New(Settings{Queue: "q", DeadLetter: "dead", Retry: topology.Retry{}.WithDefaults(), Concurrency: 1})
	d := k.decode(raw, nil)
	d.handling = noHandling{}
	copies := []inner.Copy{k.copyOf(d)}
	for _, act := range []action{actRetry, actSnooze, actDeadLetter, actReturn} {
		copies = append(copies, k.replacement(d, dispose(act, "", errors.New("it failed"))).Copy)
	}
	return copies
}

// noHandling is a Handling of an application that sets no options.
type noHandling struct{ Handling }

func (noHandling) Backoff(_ error, policy time.Duration) time.Duration { return policy }

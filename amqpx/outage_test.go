package amqpx_test

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
)

// However long an outage lasts, the errors of Send and Health have only a few different texts, so that a tool that
// groups errors by text shows a few problems rather than one for each message.
func TestTextsOfAnOutage(t *testing.T) {
	for name, c := range map[string]struct {
		begin func(m *memory)
	}{
		"no broker": {func(m *memory) { m.RefuseConnections(); m.CutConnections() }},
		"no login":  {func(m *memory) { m.RefuseLogins(); m.CutConnections() }},
		"alarm":     {func(m *memory) { m.Block("low on memory") }},
		"hung broker": {func(m *memory) {
			m.Control(func(amqptest.Frame) amqptest.Action { return amqptest.Action{Drop: true} })
		}},
		"hung queue": {func(m *memory) { m.Silence("q") }},
		"full queue": {func(m *memory) { m.Nack("q") }},
		"no right":   {func(m *memory) { m.Refuse("q", amqp.AccessRefused, "no") }},
	} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, func(t *testing.T, m *memory) {
				cl := m.open(amqpx.Config{})
				cl.consume("p", nothing)
				cl.mustSend(amqpx.Message{Queue: "q"})
				c.begin(m)
				texts := map[string]map[string]int{"send": {}, "health": {}}
				for i := range 200 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+i%7)*300*time.Millisecond)
					err := cl.Send(ctx, amqpx.Message{ID: "m", Queue: "q"})
					cancel()
					if i < 20 { // the first sends may still be confirmed
						continue
					}
					if err == nil {
						t.Fatal("Send during the outage: got no error, want one")
					}
					texts["send"][err.Error()]++
					if err := cl.Health(); err != nil {
						texts["health"][err.Error()]++
					}
					after(100 * time.Millisecond)
				}
				for what, all := range texts {
					// The same cause may be noticed at several stages of sending a message, each with its own text.
					if len(all) > 3 {
						t.Errorf("%s: the errors have %d texts:\n%q, want at most 3", what, len(all), slices.Sorted(maps.Keys(all)))
					}
				}
			})
		})
	}
}

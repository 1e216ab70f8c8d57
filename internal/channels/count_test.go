package channels

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// answers simulates a broker with a network delay that gives one answer after another.
type answers struct {
	roundTrip time.Duration
	list      []answer // the last one is repeated
	asked     int
	stalls    []time.Duration // additional time for the first round trips that only measure the network
}

type answer struct {
	took  time.Duration // how long the broker took
	queue amqp.Queue
	err   error
}

func (a *answers) count(ctx context.Context) (amqp.Queue, error) {
	return count(ctx, "q",
		func() (amqp.Queue, error) {
			next := a.list[min(a.asked, len(a.list)-1)]
			a.asked++
			<-time.After(a.roundTrip + next.took)
			return next.queue, next.err
		},
		func() error {
			took := a.roundTrip
			if len(a.stalls) > 0 {
				took, a.stalls = took+a.stalls[0], a.stalls[1:]
			}
			<-time.After(took)
			return nil
		})
}

// If the leader of a quorum queue is too busy to count, the broker answers with zeros after a timeout. count ignores
// zeros that arrive so late, and asks again.
func TestCountOfABusyLeader(t *testing.T) {
	var (
		nothing = amqp.Queue{Name: "q"}
		three   = amqp.Queue{Name: "q", Messages: 3, Consumers: 1}
		refused = &amqp.Error{Code: amqp.NotFound}
	)
	for name, test := range map[string]struct {
		broker answers
		want   amqp.Queue
		err    error
		asked  int
	}{
		"an empty queue":           {answers{roundTrip: time.Millisecond, list: []answer{{0, nothing, nil}}}, nothing, nil, 1},
		"an empty queue, far away": {answers{roundTrip: 400 * time.Millisecond, list: []answer{{0, nothing, nil}}}, nothing, nil, 1},
		"messages, late":           {answers{roundTrip: time.Millisecond, list: []answer{{time.Second, three, nil}}}, three, nil, 1},
		"busy, then not": {
			answers{roundTrip: time.Millisecond, list: []answer{{leaderTimeout, nothing, nil}, {leaderTimeout, nothing, nil}, {0, three, nil}}}, three, nil, 3,
		},
		"busy and far away, then not": {
			answers{roundTrip: 400 * time.Millisecond, list: []answer{{leaderTimeout, nothing, nil}, {0, three, nil}}}, three, nil, 2,
		},
		"busy, on a machine that stalls": {
			answers{roundTrip: time.Millisecond, list: []answer{{leaderTimeout, nothing, nil}, {0, three, nil}}, stalls: []time.Duration{time.Second, 0, 300 * time.Millisecond}}, three, nil, 2,
		},
		"always busy": {answers{roundTrip: time.Millisecond, list: []answer{{leaderTimeout, nothing, nil}}}, amqp.Queue{}, ErrUnavailable, countTries},
		"missing":     {answers{roundTrip: time.Millisecond, list: []answer{{time.Second, nothing, refused}}}, nothing, refused, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				got, err := test.broker.count(t.Context())
				if got != test.want || !errors.Is(err, test.err) {
					t.Errorf("count: got %+v, %v, want %+v, %v", got, err, test.want, test.err)
				}
				if test.broker.asked != test.asked {
					t.Errorf("count: got %d requests to the broker, want %d", test.broker.asked, test.asked)
				}
			})
		})
	}
}

func TestCountEndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*leaderTimeout)
		defer cancel()
		a := answers{list: []answer{{took: leaderTimeout}}}
		if _, err := a.count(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("count with an expired context: got %v, want context.DeadlineExceeded", err)
		}
	})
}

package channels

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// answers is a broker at some distance that answers one question after another.
type answers struct {
	roundTrip time.Duration
	list      []answer
	asked     int
}

type answer struct {
	took  time.Duration // of the broker
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
			<-time.After(a.roundTrip)
			return nil
		})
}

// A broker answers with zeros if the leader of a quorum queue is too busy to count. Such an answer is not believed.
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
		"an empty queue":           {answers{time.Millisecond, []answer{{0, nothing, nil}}, 0}, nothing, nil, 1},
		"an empty queue, far away": {answers{400 * time.Millisecond, []answer{{0, nothing, nil}}, 0}, nothing, nil, 1},
		"messages, late":           {answers{time.Millisecond, []answer{{time.Second, three, nil}}, 0}, three, nil, 1},
		"busy, then not": {
			answers{time.Millisecond, []answer{{leaderTimeout, nothing, nil}, {leaderTimeout, nothing, nil}, {0, three, nil}}, 0}, three, nil, 3,
		},
		"busy and far away, then not": {
			answers{400 * time.Millisecond, []answer{{leaderTimeout, nothing, nil}, {0, three, nil}}, 0}, three, nil, 2,
		},
		"always busy": {answers{time.Millisecond, []answer{{leaderTimeout, nothing, nil}}, 0}, amqp.Queue{}, ErrUnavailable, countTries},
		"missing":     {answers{time.Millisecond, []answer{{time.Second, nothing, refused}}, 0}, nothing, refused, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				got, err := test.broker.count(t.Context())
				if got != test.want || !errors.Is(err, test.err) {
					t.Errorf("counted %+v (%v), expected %+v (%v)", got, err, test.want, test.err)
				}
				if test.broker.asked != test.asked {
					t.Errorf("asked %d times, expected %d", test.broker.asked, test.asked)
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
			t.Errorf("Count says %v after its context has ended", err)
		}
	})
}

package messages_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// If the leader of a queue does not answer within 250 ms, the broker reports that the queue is empty and has no
// consumers. Functions that count messages do not rely on that answer.
func TestCountsOfABusyLeader(t *testing.T) {
	t.Parallel()
	suite.OnVhosts(t, func(t *testing.T, v *suite.Vhost) {
		c := suite.Requeuer(t, v)
		suite.Buries(t, v, "dead", "q", 12, amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": topology.NoDeliveryLimit})
		suite.Known(t, v, "dead") // otherwise Peek refuses to read
		conn := v.Dial(t)
		narrow, err := amqp.Dial(v.User(t, "narrow", "", [3]string{"^dead$", "^$", "^dead$"}))
		suite.MustSucceed(t, err)
		defer func() { _ = narrow.Close() }()
		for name, count := range map[string]func() (int, error){
			"QueueInfo": func() (int, error) {
				info, err := c.QueueInfo(t.Context(), "dead")
				return info.Ready, err
			},
			"Counts": func() (int, error) {
				counts, err := live.Counts(t.Context(), conn, []string{"dead"})
				return int(counts["dead"].Ready), err
			},
			"Counts with few permissions": func() (int, error) {
				counts, err := live.Counts(t.Context(), narrow, []string{"dead"})
				return int(counts["dead"].Ready), err
			},
			"Requeue": func() (int, error) {
				r, err := inspect.Requeue(t.Context(), c, inspect.RequeueOptions{
					Queue: "dead", Management: v.Management, DryRun: true, Filter: inspect.DeadLetterFilter{Header: "n", HeaderValue: "none"},
				})
				return r.Total, err
			},
			"Peek": func() (int, error) {
				looking, err := inspect.Dial(t.Context(), amqpx.Config{URL: v.URL})
				if err != nil {
					return 0, err
				}
				defer func() { _ = looking.Close() }()
				p, err := inspect.Peek(t.Context(), looking, "dead", inspect.PeekOptions{Management: v.Management})
				return len(p.Messages), err
			},
		} {
			busy(t, v, "dead", 700*time.Millisecond)
			if got, err := count(); got < min(12, inspect.DefaultPeek) || err != nil {
				t.Errorf("%s counted %d messages (error %v), want at least %d", name, got, err, min(12, inspect.DefaultPeek))
			}
		}
	})
}

// busy suspends a quorum queue's leader for the duration d.
func busy(t *testing.T, v *suite.Vhost, queue string, d time.Duration) {
	t.Helper()
	expr := fmt.Sprintf(`{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(<<%q>>, queue, <<%q>>)), P = amqqueue:get_pid(Q), `+
		`ok = sys:suspend(P), spawn(fun() -> timer:sleep(%d), sys:resume(P) end), ok.`, v.Name, queue, d.Milliseconds())
	if out, err := v.Broker.Ctl(t.Context(), "--silent", "eval", expr); err != nil || strings.TrimSpace(out) != "ok" {
		t.Fatalf(`suspending the leader: got %s, %v, want no error and "ok"`, out, err)
	}
}

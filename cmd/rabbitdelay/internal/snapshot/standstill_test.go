package snapshot_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/doctor"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/snapshot"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

const slow = "delay.ttl.1s"

// told is a management API with one delay queue, which reports the given numbers of published messages and of dead
// letters in transit.
type told struct {
	published *atomic.Int64
	letters   int64
}

func (m told) RoundTrip(r *http.Request) (*http.Response, error) {
	body := "[]"
	switch {
	case strings.HasPrefix(r.URL.Path, "/api/queues/"):
		body = fmt.Sprintf(`[{"name":%q,"type":"quorum","durable":true,"arguments":{"x-message-ttl":1000,"x-dead-letter-exchange":"delay.deliver"},
			"messages":%d,"messages_ready":3,"message_stats":{"publish":%d}}]`, slow, 3+m.letters, m.published.Load())
	case strings.HasPrefix(r.URL.Path, "/api/overview"):
		body = "{}"
	}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
}

// Take reports a queue that keeps its messages, but not a queue through which messages pass. Without the management
// API, it cannot distinguish the two if the queue's count does not decrease.
func TestTakeFindsStandstill(t *testing.T) {
	for name, c := range map[string]struct {
		flow      bool // as many messages arrive as leave, without being observed
		letters   int64
		moves     bool
		blind     bool
		found     int64
		unchecked bool
		seconds   float64 // the most that Take may need
	}{
		"stands still":                  {found: 3, seconds: 20},
		"moves":                         {moves: true, seconds: 2},
		"moves, and dead letters stay":  {moves: true, letters: 8, found: 8, seconds: 20},
		"a flow":                        {flow: true, seconds: 20},
		"without the management API":    {blind: true, unchecked: true, seconds: 8},
		"moves, without management API": {blind: true, moves: true, seconds: 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				srv := amqptest.NewServer(amqptest.Options{})
				defer srv.Close()
				conn, err := srv.Connect()
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = conn.Close() }()
				ch, err := conn.Channel()
				if err != nil {
					t.Fatal(err)
				}
				// The queue has no TTL, so it keeps its messages, although the management API reports a TTL.
				if _, err := ch.QueueDeclare(slow, true, false, false, false, amqp.Table{"x-queue-type": "quorum"}); err != nil {
					t.Fatal(err)
				}
				for range 3 {
					if err := ch.PublishWithContext(t.Context(), "", slow, false, false, amqp.Publishing{}); err != nil {
						t.Fatal(err)
					}
				}
				synctest.Wait() // waits until the broker has received the messages
				published := &atomic.Int64{}
				published.Store(3)
				if c.flow {
					time.AfterFunc(6*time.Second, func() { published.Store(9) })
				}
				if c.moves {
					time.AfterFunc(time.Second, func() { _, _, _ = ch.Get(slow, true) })
				}
				cfg := doctor.Config{Roles: []doctor.Role{}}
				src := snapshot.Source{
					Dial:      func(context.Context) (*amqp.Connection, error) { return srv.Connect() },
					SkipClock: true, Standstill: &doctor.StallWatch{}, Watch: 6 * time.Second,
				}
				if c.blind {
					ttl, deliver := time.Second, topology.DeadLetter{Exchange: "delay.deliver"}
					cfg.Want.Queues = []topology.Queue{{Name: slow, Type: topology.Quorum, MessageTTL: &ttl, DeadLetter: &deliver}}
				} else if src.Management, err = live.NewManagement(live.ManagementConfig{URL: "http://management", Transport: told{published, c.letters}}); err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				snap, err := snapshot.Take(t.Context(), cfg, src)
				if took := time.Since(began); err != nil || took.Seconds() > c.seconds {
					t.Fatalf("Take: got error %v after %v, want no error after at most %v s", err, took, c.seconds)
				}
				kept := int64(0)
				for _, s := range snap.Standing {
					kept += s.Kept
				}
				unchecked := false
				for _, u := range snap.Unchecked {
					unchecked = unchecked || u.Area == doctor.AreaStandstill
				}
				if kept != c.found || unchecked != c.unchecked {
					t.Errorf("got Standing = %+v and Unchecked = %+v, want %v kept messages and unchecked = %v", snap.Standing, snap.Unchecked, c.found, c.unchecked)
				}
			})
		})
	}
}

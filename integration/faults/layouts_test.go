package faults_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/config"
	"github.com/rabbitdelay/rabbitdelay/integration/binary"
	"github.com/rabbitdelay/rabbitdelay/integration/broker"
	"github.com/rabbitdelay/rabbitdelay/integration/faults"
	"github.com/rabbitdelay/rabbitdelay/integration/servers"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// The layout or the strategy is changed in a rolling update: first the old version of a service runs, then both
// versions run, and then only the new one. No message is lost, early or duplicated, and at the end the old layout can
// be retired.
func TestLayoutsChange(t *testing.T) {
	skipIfAsked(t)
	const native = "strategy: native, previous: [{layout: clock}]"
	for name, change := range map[string]struct {
		version  string // empty for a broker that delays until a given time
		settings []string
		gone     string
	}{
		"100 ms to 10 ms":     {*version, []string{"bucket: {resolution: 100ms}", "previous: [{resolution: 100ms}]"}, "bucket.clock-100ms.1s"},
		"clock to hex":        {*version, []string{"bucket: {layout: clock}", "bucket: {layout: hex}, previous: [{layout: clock}]"}, "bucket.1s"},
		"clock to hex on 4.0": {"4.0", []string{"bucket: {layout: clock}", "bucket: {layout: hex}, previous: [{layout: clock}]"}, "bucket.1s"},
		"classic to quorum": {
			*version,
			[]string{"queue_type: classic, bucket: {layout: hex}", "bucket: {layout: hex}, previous: [{layout: hex, queue_type: classic}]"},
			"bucket.hex-classic.1s600ms",
		},
		"buckets to native":         {"", []string{"strategy: bucket", native}, "bucket.1s"},
		"buckets to native to them": {"", []string{"strategy: bucket", native, "strategy: bucket, previous: [{strategy: native}]"}, "native.1"},
	} {
		t.Run(name, func(t *testing.T) {
			if change.version == "" {
				change.version = delaysByInstant(t)
			}
			t.Parallel()
			l := &rolling{t: t, broker: broker.Shared(t, managed(change.version)), prefix: fmt.Sprintf("roll%d", time.Now().UnixNano())}
			now := l.roll(*duration/9, change.settings)
			now.stopSending()
			if v := l.await(); !v.Clean() || v.Messages == 0 {
				t.Errorf("got %d messages and the verdict %s, want more than 0 and a clean verdict", v.Messages, v)
			}
			if _, there := l.queue(change.gone); !there {
				t.Fatalf("queue %s does not exist before the layout is retired, want it to exist", change.gone)
			}
			var got binary.Result
			for end := time.Now().Add(*settle); ; <-time.After(time.Second) {
				if got = binary.Run(t.Context(), "retire", "--yes", "-f", now.file); got.Code == 0 {
					break
				}
				// For a few seconds, a busy broker may still count messages that have left a queue, or its management API
				// may answer too late.
				busy := strings.Contains(got.Stderr, "wait until they have drained") || strings.Contains(got.Stderr, "make the management API reachable")
				if !busy || time.Now().After(end) {
					t.Fatalf("retire: got %s, want exit code 0", got)
				}
			}
			t.Logf("%d messages; %s", len(l.sent), got.Stdout)
			if n, there := l.queue(change.gone); there {
				t.Errorf("after retire, queue %s exists with %d messages, want it to be deleted", change.gone, n)
			}
			now.send(time.Second) // the current layout still works
			if v := l.await(); !v.Clean() {
				t.Errorf("got %v, want a verdict without violations", v)
			}
			now.stop()
		})
	}
}

// managed returns the options of the shared broker for tests that need its management API.
func managed(version string) broker.Options {
	return broker.Options{Version: version, Management: true}
}

// rolling records what services that share a destination send and handle.
type rolling struct {
	t      *testing.T
	broker *broker.Broker
	prefix string

	mu      sync.Mutex
	sent    []faults.Sent
	effects []faults.Effect
}

// service is one version of a service, with a producer and a consumer.
type service struct {
	l      *rolling
	file   string
	client *amqpx.Client

	stopSending func()
	stop        func() // stops the client and its consumer
}

// roll starts a service for each of the settings and stops the previous one after a while. The last one keeps running.
func (l *rolling) roll(part time.Duration, settings []string) (now *service) {
	l.t.Helper()
	for _, delay := range settings {
		old := now
		now = l.service(delay)
		<-time.After(part)
		if old != nil {
			old.stop()
			<-time.After(part)
		}
	}
	return now
}

// service starts a service with the given delay settings.
func (l *rolling) service(delay string) *service {
	l.t.Helper()
	s := &service{l: l, file: filepath.Join(l.t.TempDir(), "delays.yaml")}
	text := fmt.Sprintf("broker: {url: %q, management_url: %q}\ndelay: {prefix: %s, %s}\ndestinations: [{queue: %s}]\n",
		l.broker.URL(), l.broker.ManagementURL(), l.prefix, delay, l.destination())
	l.must(os.WriteFile(s.file, []byte(text), 0o600))
	c, err := config.Load(config.Source{File: s.file})
	l.must(err)
	strategy, err := c.Strategy(l.t.Context(), nil)
	l.must(err)
	cfg, err := c.Client(strategy, nil)
	l.must(err)
	ctx, cancel := context.WithTimeout(l.t.Context(), servers.Patience)
	defer cancel()
	s.client, err = amqpx.Open(ctx, cfg)
	l.must(err)
	sending, stopSending := context.WithCancel(context.Background())
	consuming, stopConsuming := context.WithCancel(context.Background())
	var sends, consumes sync.WaitGroup
	sends.Go(func() {
		for sending.Err() == nil {
			s.send(100*time.Millisecond + rand.N(3*time.Second))
			<-time.After(10 * time.Millisecond)
		}
	})
	consumes.Go(func() {
		if err := s.client.Consume(consuming, l.destination(), l.effect,
			amqpx.WithRetry(topology.Retry{MaxAttempts: 10, Backoff: 300 * time.Millisecond})); err != nil {
			l.t.Error(err)
		}
	})
	s.stopSending = func() { stopSending(); sends.Wait() }
	s.stop = sync.OnceFunc(func() {
		s.stopSending()
		stopConsuming()
		consumes.Wait()
		if err := s.client.Close(context.Background()); err != nil {
			l.t.Error(err)
		}
	})
	l.t.Cleanup(s.stop)
	return s
}

func (l *rolling) destination() string { return l.prefix + ".orders" }

func (l *rolling) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

// send sends one message.
func (s *service) send(delay time.Duration) {
	m := faults.Sent{Began: time.Now()}
	m.Due = m.Began.Add(delay).Truncate(time.Millisecond)
	m.ID = fmt.Sprintf("%d-%d", m.Began.UnixNano(), rand.Uint32())
	err := s.client.Send(context.Background(), amqpx.Message{ID: m.ID, Queue: s.l.destination(), DeliverAt: m.Due})
	if err != nil {
		s.l.t.Errorf("sending a message: %v", err)
		return
	}
	m.Ended = time.Now()
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	s.l.sent = append(s.l.sent, m)
}

// effect fails at the first attempt of every fourth message. The retry uses the strategy of the service that handled
// the message, which is not always the one that sent it.
func (l *rolling) effect(_ context.Context, d *amqpx.Delivery) error {
	if d.Attempt == 1 && d.ID[len(d.ID)-1]%4 == 0 {
		return errors.New("not yet")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.effects = append(l.effects, faults.Effect{ID: d.ID, At: time.Now()})
	return nil
}

// await waits until there are as many effects as messages, but not longer than -settle, and returns the verdict.
func (l *rolling) await() faults.Verdict {
	for end := time.Now().Add(*settle); ; <-time.After(20 * time.Millisecond) {
		l.mu.Lock()
		v := faults.Check(l.sent, l.effects, nil)
		l.mu.Unlock()
		if v.Lost == 0 || time.Now().After(end) {
			return v
		}
	}
}

// queue counts the messages in a queue with the prefix.
func (l *rolling) queue(name string) (ready int, there bool) {
	l.t.Helper()
	conn, err := amqp.Dial(l.broker.URL())
	l.must(err)
	defer func() { _ = conn.Close() }()
	ch, err := conn.Channel()
	l.must(err)
	q, err := ch.QueueDeclarePassive(l.prefix+"."+name, true, false, false, false, nil)
	return q.Messages, err == nil
}

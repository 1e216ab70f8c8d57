package plugin_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/bridge"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
)

// If a bridge's process is killed at any time, no message is lost or early, and a duplicate has the same id if the
// message had one.
func TestBridgeKilled(t *testing.T) {
	t.Parallel()
	suite.OnSomePrepared(t, func(t *testing.T, v *suite.Vhost) {
		const n, kills = 3000, 4
		x := bridge.Exchange{Name: "shop", Type: "direct"}
		suite.MustSucceed(t, suite.Requeuer(t, v).Apply(t.Context(), x.Topology()))
		suite.Makes(t, v, "out", suite.QuorumQueue)
		ch := v.Channel(t)
		suite.MustSucceed(t, ch.QueueBind("out", "paid", x.Due(), false, nil))
		in, err := v.Channel(t).Consume("out", "", true, false, false, false, nil)
		suite.MustSucceed(t, err)

		var mu sync.Mutex
		due, came := map[string]time.Time{}, map[string][]string{} // by body
		go func() {
			for d := range in {
				mu.Lock()
				body := string(d.Body)
				if early := time.Until(due[body]); early > 0 {
					t.Errorf("message %s arrived %v before it was due", body, early)
				}
				came[body] = append(came[body], d.MessageId)
				mu.Unlock()
			}
		}()
		ended := killsBridges(t, v, x, kills)
		suite.MustSucceed(t, ch.Confirm(false))
		for i := range n {
			delay := time.Duration(1000+rand.IntN(6000)) * time.Millisecond
			p := amqp.Publishing{DeliveryMode: amqp.Persistent, Body: fmt.Append(nil, i), Headers: amqp.Table{"x-delay": delay.Milliseconds()}}
			if i%2 == 0 {
				p.MessageId = fmt.Sprint("m", i)
			}
			mu.Lock()
			due[string(p.Body)] = time.Now().Truncate(time.Millisecond).Add(delay)
			mu.Unlock()
			c, err := ch.PublishWithDeferredConfirm(x.Name, "paid", false, false, p)
			if err != nil || !c.Wait() {
				t.Fatalf("publishing to exchange %s: got error %v, want nil and a confirm", x.Name, err)
			}
			<-time.After(3 * time.Millisecond)
		}
		stop := <-ended
		for deadline := time.Now().Add(time.Minute); ; <-time.After(100 * time.Millisecond) {
			mu.Lock()
			arrived := len(came)
			mu.Unlock()
			if arrived == n || time.Now().After(deadline) {
				break
			}
		}
		<-time.After(3 * time.Second) // for duplicates that must not arrive
		stop()
		mu.Lock()
		defer mu.Unlock()
		copies := 0
		for i := range n {
			ids := came[fmt.Sprint(i)]
			copies += max(len(ids)-1, 0)
			if len(ids) == 0 {
				t.Errorf("message m%d did not arrive, want it at least once", i)
			}
			for _, id := range ids {
				if i%2 == 0 && id != fmt.Sprint("m", i) {
					t.Errorf("message m%d arrived with the id %q, want its own", i, id)
				}
			}
		}
		if most := kills * 2 * bridge.DefaultConcurrency; copies > most {
			t.Errorf("%d messages arrived twice, want at most %d, the number in progress", copies, most)
		}
		t.Logf("%d messages, %d kills: %d messages arrived twice", n, kills, copies)
	})
}

// killsBridges runs one bridge after another and kills each of them, except the last. The channel then receives a
// function that stops the last bridge.
func killsBridges(t *testing.T, v *suite.Vhost, x bridge.Exchange, kills int) <-chan func() {
	t.Helper()
	file := filepath.Join(t.TempDir(), "delays.yaml")
	suite.MustSucceed(t, os.WriteFile(file, fmt.Appendf(nil, "delay: {bucket: {layout: hex}}\nbroker: {management_url: %q}\n", v.Mgmt.Endpoint()), 0o600))
	args := []string{"bridge", "--exchange", x.Name, "--type", x.Type, "-f", file, "--url", v.URL}
	begin := func() (end func()) {
		c := suite.Command(t, args...)
		if err := c.Start(); err != nil {
			t.Error(err)
		}
		return func() { _ = c.Process.Kill(); _ = c.Wait() }
	}
	last := make(chan func(), 1)
	go func() {
		for range kills {
			kill := begin()
			<-time.After(2*time.Second + rand.N(3*time.Second))
			kill()
		}
		last <- begin()
	}()
	return last
}

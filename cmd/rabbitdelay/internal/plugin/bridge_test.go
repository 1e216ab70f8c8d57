package plugin_test

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/bridge"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/clitest"
)

// bridgeRun is a running rabbitdelay bridge.
type bridgeRun struct {
	out, errs clitest.Buffer
	stop      func() (code int)
}

// startBridge starts a bridge for the exchange shop and waits until it is ready.
func startBridge(t *testing.T, b *clitest.Broker, flags ...string) *bridgeRun {
	t.Helper()
	at := clitest.FreeAddress(t)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	r := &bridgeRun{}
	ended := make(chan int, 1)
	args := append([]string{"bridge", "--exchange", "shop", "--type", "direct", "--probe", at, "--url", b.URL}, flags...)
	go func() { ended <- clitest.RunTo(ctx, &r.out, &r.errs, args...) }()
	r.stop = func() int { cancel(); return <-ended }
	clitest.Await(t, "the bridge is ready", func() bool { return ready(t, at) })
	return r
}

func ready(t *testing.T, at string) bool {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+at+"/readyz", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	got, err := client.Do(r)
	if err != nil {
		return false
	}
	_ = got.Body.Close()
	return got.StatusCode == http.StatusOK
}

// A bridge runs and answers probes until it is stopped, and then prints its statistics.
func TestBridge(t *testing.T) {
	b := clitest.NewBroker(t, amqptest.Options{})
	run := startBridge(t, b, "--json")
	ch := b.Channel(t)
	if err := ch.ExchangeDeclarePassive("shop", "x-delayed-message", true, false, false, false, nil); err != nil {
		t.Fatal(err) // a producer may declare the exchange passively with any type
	}
	if _, err := ch.QueueDeclare("out", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if err := ch.QueueBind("out", "paid", "shop.due", false, nil); err != nil {
		t.Fatal(err)
	}
	for _, delay := range []any{int32(30), nil} {
		p := amqp.Publishing{Headers: amqp.Table{"x-delay": delay}}
		if err := ch.PublishWithContext(t.Context(), "shop", "paid", false, false, p); err != nil {
			t.Fatalf("delay %v: %v", delay, err)
		}
	}
	clitest.Await(t, "both messages have arrived", func() bool { q, _ := b.Queue("out"); return q.Ready == 2 })

	dry := b.Run(t, "bridge", "--exchange", "shop", "--type", "direct", "--dry-run")
	if dry.Code != 2 {
		t.Errorf("a dry run: got %s, want exit code 2", dry)
	}
	if !strings.Contains(dry.Stdout, "shop.bridge.due") {
		t.Errorf("a dry run: got %s, want shop.bridge.due in Stdout", dry)
	}
	if code := run.stop(); code != 0 {
		t.Fatalf("got exit code %d, want 0: %s", code, run.errs.String())
	}
	var got bridge.Stats
	if err := json.Unmarshal([]byte(run.out.String()), &got); err != nil {
		t.Fatalf("the result %q is not JSON: %v", run.out.String(), err)
	}
	if got.Delayed != 1 {
		t.Errorf("%d messages were delayed, want 1", got.Delayed)
	}
	if got.Delivered != 2 {
		t.Errorf("%d messages were delivered, want 2", got.Delivered)
	}
	if got.Dead != 0 {
		t.Errorf("%d messages were dead-lettered, want 0", got.Dead)
	}
}

// If a bridge cannot forward messages, it logs a warning, but not for every message.
func TestBridgeReportsUndeliveredMessages(t *testing.T) {
	b := clitest.NewBroker(t, amqptest.Options{})
	run := startBridge(t, b)
	ch := b.Channel(t)
	if err := ch.ExchangeDelete("shop.due", false, false); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		if err := ch.PublishWithContext(t.Context(), "shop", "paid", false, false, amqp.Publishing{}); err != nil {
			t.Fatal(err)
		}
	}
	const warning = "could not forward a message"
	clitest.Await(t, "the bridge logs a warning", func() bool { return strings.Contains(run.errs.String(), warning) })
	if code := run.stop(); code != 0 {
		t.Errorf("got exit code %d, want 0: %s", code, run.errs.String())
	}
	if n := strings.Count(run.errs.String(), warning); n > 3 {
		t.Errorf("got %d warnings for 10 messages, want at most 3: %s", n, run.errs.String())
	}
}

package cli

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/amqpx/bridge"
)

// A bridge runs until it is stopped, answers probes meanwhile, and says what it did.
func TestBridge(t *testing.T) {
	b := newByHand(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	at := freeAddress(t)
	var out, errs lockedBuilder
	ended := make(chan int, 1)
	go func() {
		ended <- Run(ctx, []string{"bridge", "--exchange", "shop", "--type", "direct", "--probe", at, "--json", "--url", b.url}, strings.NewReader(""), &out, &errs)
	}()
	await(t, func() bool { return ready(t, at) })
	ch := b.channel(t)
	if err := ch.ExchangeDeclarePassive("shop", "x-delayed-message", true, false, false, false, nil); err != nil {
		t.Fatal(err) // as producers may, of any type
	}
	if _, err := ch.QueueDeclare("out", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if err := ch.QueueBind("out", "paid", "shop.due", false, nil); err != nil {
		t.Fatal(err)
	}
	for _, delay := range []any{int32(30), nil} {
		if err := ch.PublishWithContext(ctx, "shop", "paid", false, false, amqp.Publishing{Headers: amqp.Table{"x-delay": delay}}); err != nil {
			t.Fatal(err)
		}
	}
	await(t, func() bool { q, _ := b.Queue("out"); return q.Ready == 2 })
	if code, text, _ := b.run(t, "bridge", "--exchange", "shop", "--type", "direct", "--dry-run"); code != 2 || !strings.Contains(text, "shop.bridge.due") {
		t.Errorf("dry run: %d\n%s", code, text)
	}
	cancel()
	if code := <-ended; code != 0 {
		t.Fatalf("exit code %d: %s", code, errs.String())
	}
	var got bridge.Stats
	if err := json.Unmarshal([]byte(out.String()), &got); err != nil || got.Delayed != 1 || got.Delivered != 2 || got.Dead != 0 {
		t.Errorf("result %q, %v", out.String(), err)
	}
}

// A bridge whose messages do not get on says so, once in a while.
func TestBridgeSaysThatMessagesDoNotGetOn(t *testing.T) {
	b := newByHand(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	at := freeAddress(t)
	var out, errs lockedBuilder
	ended := make(chan int, 1)
	go func() {
		ended <- Run(ctx, []string{"bridge", "--exchange", "shop", "--type", "direct", "--probe", at, "--url", b.url}, strings.NewReader(""), &out, &errs)
	}()
	await(t, func() bool { return ready(t, at) })
	ch := b.channel(t)
	if err := ch.ExchangeDelete("shop.due", false, false); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		if err := ch.PublishWithContext(ctx, "shop", "paid", false, false, amqp.Publishing{}); err != nil {
			t.Fatal(err)
		}
	}
	await(t, func() bool { return strings.Contains(errs.String(), "does not get on") })
	cancel()
	if code := <-ended; code != 0 || strings.Count(errs.String(), "does not get on") > 3 {
		t.Errorf("exit code %d: %s", code, errs.String())
	}
}

// A dry run declares nothing.
func TestBridgeDryRun(t *testing.T) {
	b := newByHand(t)
	code, text, _ := b.run(t, "bridge", "--exchange", "shop", "--type", "topic", "--dry-run")
	if code != 2 || !strings.Contains(text, "shop.due") {
		t.Errorf("exit code %d\n%s", code, text)
	}
	if got := b.Queues(); len(got) != 0 {
		t.Errorf("queues %v", got)
	}
}

func TestBridgeRefuses(t *testing.T) {
	b := newByHandOf(t, amqptest.Options{Version: "4.0.5", Plugin: true})
	ch := b.channel(t)
	if err := ch.ExchangeDeclare("old", "x-delayed-message", true, false, false, false, amqp.Table{"x-delayed-type": "topic"}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "invalid exchange"},
		{[]string{"--exchange", "shop"}, "expected the x-delayed-type that it had"},
		{[]string{"--exchange", "delay.plugin", "--type", "topic"}, "belongs to the delay strategies"},
		{[]string{"--exchange", "shop", "--type", "topic", "--concurrency", "0"}, "--concurrency"},
		{[]string{"--exchange", "old", "--type", "topic"}, "docs/off-the-plugin.md"},
		{[]string{"--exchange", "shop", "--type", "topic", "--strategy", "ttl"}, "ttl"},
	} {
		code, _, stderr := b.run(t, append([]string{"bridge"}, c.args...)...)
		if code != 1 || !strings.Contains(stderr, c.want) {
			t.Errorf("%v: exit code %d, %s; want %q", c.args, code, stderr, c.want)
		}
	}
}

// freeAddress is one of this machine that nobody listens at.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
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

// await fails the test unless something comes true within a minute.
func await(t *testing.T, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); <-time.After(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it did not happen")
		}
	}
}

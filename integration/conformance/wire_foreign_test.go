package conformance_test

import (
	"bufio"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/integration/broker"
	"github.com/rabbitdelay/rabbitdelay/integration/guard"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
	"github.com/rabbitdelay/rabbitdelay/internal/foreign"
	"github.com/rabbitdelay/rabbitdelay/internal/plan"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// celeryImage is the image with Debian's Celery that integration/images/build.sh builds.
const celeryImage = "rabbitdelay/celery"

// onForeignVhosts runs a test on a virtual host of each RabbitMQ version with which other systems' layouts are tested.
func onForeignVhosts(t *testing.T, test func(t *testing.T, v *suite.Vhost)) {
	t.Helper()
	versions, err := broker.Versions(t.Context())
	if err != nil {
		broker.Shared(t, broker.Options{Management: true}) // skips or fails with the reason
	}
	for _, line := range []string{"4.0", "4.3"} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			if !slices.Contains(versions, line) {
				t.Skipf("skipped: RabbitMQ %s is not available", line)
			}
			test(t, suite.NewVhost(t, broker.Shared(t, broker.Options{Version: line, Management: true})))
		})
	}
}

// celery returns a command that runs the worker's program in a container.
func celery(ctx context.Context, t *testing.T, image string, v *suite.Vhost, args ...string) *exec.Cmd {
	t.Helper()
	program, err := os.Open("../wire/celery/worker.py")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = program.Close() })
	name := "rabbitdelay-celery-" + strings.ToLower(rand.Text()[:10])
	g, err := guard.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Dismiss() })
	if err := g.Container(name); err != nil {
		t.Fatal(err)
	}
	run := []string{
		"run", "--rm", "--interactive", "--init", "--name=" + name, "--label=rabbitdelay=celery", "--network=host",
		"--env=BROKER=" + v.URL, image, "python3", "-",
	}
	cmd := exec.CommandContext(ctx, "docker", append(run, args...)...)
	cmd.Stdin = program
	t.Cleanup(func() {
		_ = exec.CommandContext(context.WithoutCancel(ctx), "docker", "rm", "--force", name).Run() // usually the container has already been removed
	})
	return cmd
}

// worker is a Celery worker, represented by the lines that it prints.
type worker struct {
	t     *testing.T
	lines <-chan string
}

func startWorker(t *testing.T, image string, v *suite.Vhost) *worker {
	t.Helper()
	cmd := celery(t.Context(), t, image, v, "worker")
	out, in := io.Pipe()
	cmd.Stdout, cmd.Stderr = in, in
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := make(chan string, 10000)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			lines <- s.Text()
		}
	}()
	t.Cleanup(func() { // runs after the cleanup that removes the container
		_ = cmd.Wait()
		_ = in.Close()
		<-done
	})
	return &worker{t, lines}
}

// says waits for the next line that starts with the given word, and returns the line's fields.
func (w *worker) says(word string) []string {
	w.t.Helper()
	deadline := time.After(suite.Patience)
	var others []string
	for {
		select {
		case line, ok := <-w.lines:
			if fields := strings.Split(line, "\t"); fields[0] == word {
				return fields
			}
			others = append(others, line)
			if ok {
				continue
			}
		case <-deadline:
		}
		w.t.Fatalf("the worker printed no line starting with %q within %v:\n%s", word, suite.Patience, strings.Join(others, "\n"))
	}
}

// task returns a message that calls tasks.record in Celery's protocol.
func task(name string, delay time.Duration) amqpx.Message {
	id := uuid.NewString()
	return amqpx.Message{
		ID: id, Queue: "celery", Delay: delay, CorrelationID: id,
		ContentType: "application/json", ContentEncoding: "utf-8",
		Headers: map[string]any{"lang": "py", "task": "tasks.record", "id": id, "root_id": id},
		Body:    fmt.Appendf(nil, `[[%q], {}, {}]`, name),
	}
}

// A Celery worker executes tasks that a Go client has delayed, no matter which of the two declared the levels first.
// Celery's own countdown still works.
func TestCelery(t *testing.T) {
	t.Parallel()
	onForeignVhosts(t, func(t *testing.T, v *suite.Vhost) {
		image, err := exec.CommandContext(t.Context(), "docker", "image", "ls", "--quiet", celeryImage).Output()
		if err != nil || len(image) == 0 {
			t.Skipf("skipped: no image %s (%v); `make images` builds it", celeryImage, err)
		}
		levels, err := dlx.NewLevels(dlx.LevelsConfig{Layout: dlx.LayoutCelery})
		if err != nil {
			t.Fatal(err)
		}
		cfg := amqpx.Config{URL: v.URL, Strategy: levels}
		id, _, _ := strings.Cut(string(image), "\n")
		var w *worker
		var client *amqpx.Client
		if strings.HasSuffix(t.Name(), "4.0") {
			client = suite.OpenClient(t, cfg)
			w = startWorker(t, id, v)
			w.says("ready")
		} else {
			w = startWorker(t, id, v)
			w.says("ready")
			client = suite.OpenClient(t, cfg)
		}
		p, err := v.Managed().Plan(t.Context(), levels.Topology())
		if err != nil || p.Count(plan.ActionSame) != len(p.Steps) {
			t.Errorf("plan of rabbitdelay's levels: got conflicts %+v, error %v, want every object to be the same as Celery's", p.Conflicts(), err)
		}

		due := map[string]time.Time{"countdown": time.Now().Add(3 * time.Second)}
		if out, err := celery(t.Context(), t, id, v, "send", "countdown", "3").CombinedOutput(); err != nil {
			t.Fatalf("sending a task with Celery: %v: %s", err, out)
		}
		for _, delay := range []time.Duration{0, time.Millisecond, 2500 * time.Millisecond, 7 * time.Second} {
			name := "go " + delay.String()
			due[name] = time.Now().Add(delay)
			suite.Send(t, client, task(name, delay))
		}
		for left := len(due); left > 0; left-- {
			ran := w.says("ran")
			at, _ := strconv.ParseInt(ran[2], 10, 64)
			expected, ok := due[ran[1]]
			if early := expected.Sub(time.UnixMilli(at)); !ok || early > 5*time.Millisecond {
				t.Errorf("task %q ran %v before it was due (expected: %t), want each expected task once, when it is due", ran[1], early, ok)
			}
			delete(due, ran[1])
		}
		if n := suite.MessagesIn(t, v, "celery"); n > 0 {
			t.Errorf("%d messages are left in queue celery, want 0", n)
		}
	})
}

// A message for an NServiceBus endpoint arrives once, with its delay in a header, although the endpoint has its own
// binding. With a policy on the delivery exchange, a message whose queue was deleted is parked instead of blocking a
// level.
func TestNServiceBus(t *testing.T) {
	t.Parallel()
	onForeignVhosts(t, func(t *testing.T, v *suite.Vhost) {
		levels, err := dlx.NewLevels(dlx.LevelsConfig{Layout: dlx.LayoutNServiceBus})
		if err != nil {
			t.Fatal(err)
		}
		// An endpoint with the conventional topology declares these objects when it starts.
		suite.MustApply(t, v.Managed(), topology.Topology{
			Exchanges: []topology.Exchange{{Name: "Sales", Kind: "fanout"}, {Name: "nsb.v2.delay-delivery", Kind: "topic"}},
			Queues:    []topology.Queue{{Name: "Sales"}, {Name: "gone"}},
			Bindings:  []topology.Binding{{Exchange: "Sales", Queue: "Sales"}, {Exchange: "nsb.v2.delay-delivery", ToExchange: "Sales", RoutingKey: "#.Sales"}},
		})
		v.Manage(t, "PUT", "/api/policies/"+v.Name+"/delay-alternate", map[string]any{
			"pattern": `^nsb\.v2\.delay-delivery$`, "apply-to": "exchanges", "definition": map[string]any{"alternate-exchange": "delay.parked"},
		})
		client := suite.OpenClient(t, amqpx.Config{URL: v.URL, Strategy: levels})
		sent := time.Now()
		suite.Send(t, client, amqpx.Message{ID: "gone", Queue: "gone", Delay: 3 * time.Second},
			amqpx.Message{ID: "sold", Queue: "Sales", Type: "Sales.Expire", Delay: 2500 * time.Millisecond})
		ch := v.Channel(t)
		if _, err := ch.QueueDelete("gone", false, false, false); err != nil {
			t.Fatal(err)
		}
		for _, q := range []string{"delay.parked", "Sales"} {
			suite.Eventually(t, "queue "+q+" has a message", func() bool { return suite.MessagesIn(t, v, q) == 1 })
		}
		d, _, err := ch.Get("Sales", true)
		if err != nil || d.MessageId != "sold" || d.Type != "Sales.Expire" || d.Headers[foreign.HeaderNServiceBusDelay] != int32(3) {
			t.Errorf(`got %+v, %v, want no error, MessageId = "sold", Type = "Sales.Expire" and Headers[foreign.HeaderNServiceBusDelay] = %v`,
				d, err, int32(3))
		}
		if took := time.Since(sent); took < 2500*time.Millisecond {
			t.Errorf("the message arrived after %v, want at least 2500ms", took)
		}
		parked, _, err := ch.Get("delay.parked", true)
		if dead := inspect.ReadDeadLetter(parked, "delay.parked", "delay"); err != nil || dead.Reason != inspect.ReasonParked || dead.Destination.Queue != "gone" {
			t.Errorf(`parked message: got destination %+v, reason %s, error %v, want Queue = "gone", inspect.ReasonParked and no error`,
				dead.Destination, dead.Reason, err)
		}
	})
}

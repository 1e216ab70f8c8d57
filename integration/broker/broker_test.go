package broker

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// TestLife tries every operation on a broker that Start has started, for each source of brokers.
func TestLife(t *testing.T) {
	for _, source := range []Source{Container, Node} {
		t.Run(string(source), func(t *testing.T) {
			needSource(t, source)
			t.Parallel()
			ctx := t.Context()
			var lines []string
			b, err := Start(ctx, Options{
				Source:     source,
				Management: true,
				Config:     "heartbeat = 17",
				Log:        func(line string) { lines = append(lines, line) },
			})
			if err != nil {
				t.Fatal(err)
			}
			traces := tracesOf(b)
			defer func() {
				if err := b.Close(); err != nil {
					t.Error(err)
				}
				traces.eventuallyGone(t) // Erlang's helpers notice a moment later that it is gone
				if err := b.Close(); err != nil {
					t.Errorf("the second Close returned %v, want nil", err)
				}
				if err := b.Kill(context.Background()); err == nil {
					t.Error("Kill after Close returned no error")
				}
			}()

			if len(lines) != 1 || !strings.Contains(lines[0], b.Version()) || strings.Contains(lines[0], "guest:guest") {
				t.Errorf("want one line with the version %s and without the password, got %q", b.Version(), lines)
			}
			if b.Source() != source {
				t.Errorf("source %s, want %s", b.Source(), source)
			}
			if strings.Contains(b.RedactedURL(), ":guest@") {
				t.Errorf("RedactedURL shows the password: %s", b.RedactedURL())
			}
			if out, err := b.Ctl(ctx, "environment"); err != nil || !strings.Contains(out, "{heartbeat,17}") {
				t.Errorf("the broker does not use the extra line of configuration (error %v)", err)
			}
			if _, err := b.Ctl(ctx, "no_such_command"); err == nil {
				t.Error("an unknown rabbitmqctl command returned no error")
			}
			if memory, err := b.MemoryBytes(ctx); err != nil || memory < 1<<20 {
				t.Errorf("the broker uses %d bytes of memory, %v, want at least 1 MiB", memory, err)
			}

			send(t, b, "kept")
			url := b.URL()
			if err := b.Restart(ctx); err != nil {
				t.Fatal(err)
			}
			receive(t, b, "kept")
			send(t, b, "kept too")
			if err := b.Kill(ctx); err != nil {
				t.Fatal(err)
			}
			if _, err := shakeHands(url); err == nil {
				t.Error("the broker still answers after Kill")
			}
			if err := b.Start(ctx); err != nil {
				t.Fatal(err)
			}
			receive(t, b, "kept too")
			if b.URL() != url {
				t.Errorf("the URL changed from %s to %s", url, b.URL())
			}

			if err := b.Pause(ctx); err != nil {
				t.Fatal(err)
			}
			paused := answers(url, time.Second)
			if err := b.Resume(ctx); err != nil {
				t.Fatal(err)
			}
			if paused {
				t.Error("the broker answers while it is paused")
			}
			if !answers(url, 30*time.Second) {
				t.Error("the broker does not answer after Resume")
			}
		})
	}
}

// answers reports whether a broker completes the handshake in time.
func answers(url string, within time.Duration) bool {
	conn, err := amqp.DialConfig(url, amqp.Config{Dial: amqp.DefaultDial(within)})
	if err != nil {
		return false
	}
	return conn.Close() == nil
}

const queue = "launcher.test"

func onChannel(t *testing.T, b *Broker, do func(*amqp.Channel)) {
	t.Helper()
	conn, err := amqp.Dial(b.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	channel, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := channel.QueueDeclare(queue, true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	do(channel)
}

// send returns when the broker has the message on disk.
func send(t *testing.T, b *Broker, body string) {
	t.Helper()
	onChannel(t, b, func(channel *amqp.Channel) {
		if err := channel.Confirm(false); err != nil {
			t.Fatal(err)
		}
		message := amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte(body)}
		confirm, err := channel.PublishWithDeferredConfirmWithContext(t.Context(), "", queue, true, false, message)
		if err != nil {
			t.Fatal(err)
		}
		if ok, err := confirm.WaitContext(t.Context()); err != nil || !ok {
			t.Fatalf("confirmed: got %t, %v, want no error and ok = true", ok, err)
		}
	})
}

func receive(t *testing.T, b *Broker, body string) {
	t.Helper()
	onChannel(t, b, func(channel *amqp.Channel) {
		delivery, ok, err := channel.Get(queue, true)
		if err != nil || !ok || string(delivery.Body) != body {
			t.Fatalf("got %q (%t, %v), want %q", delivery.Body, ok, err, body)
		}
	})
}

// TestEndings ends a process that has started a broker in every possible way, and checks that nothing is left of the
// broker.
func TestEndings(t *testing.T) {
	for source, endings := range map[Source][]string{
		// The guard works in the same way however the process ends, so all ways are tested with only one source of
		// brokers.
		Container: {"panic", "SIGKILL"},
		Node:      {"panic", "exit", "SIGINT", "SIGKILL"},
	} {
		for _, ending := range endings {
			t.Run(string(source)+"/"+ending, func(t *testing.T) {
				needSource(t, source)
				t.Parallel()
				cmd := exec.CommandContext(t.Context(), os.Args[0])
				cmd.Env = append(os.Environ(), envEnding+"="+ending, EnvSource+"="+string(source), EnvURL+"=")
				// The process gets a separate session, like that of a terminal, in which Ctrl-C sends SIGINT to the
				// whole foreground group.
				cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
				var stderr strings.Builder
				cmd.Stderr = &stderr
				stdin, err := cmd.StdinPipe()
				if err != nil {
					t.Fatal(err)
				}
				stdout, err := cmd.StdoutPipe()
				if err != nil {
					t.Fatal(err)
				}
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				var started traces
				if err := json.NewDecoder(bufio.NewReader(stdout)).Decode(&started); err != nil {
					_ = cmd.Wait()
					t.Fatalf("the process that started the broker printed no JSON: %v: %s", err, stderr.String())
				}
				if found := started.left(t); len(found) == 0 {
					t.Fatal("no process of the broker was found before the end, so the test proves nothing")
				}
				if !answers(started.URL, 5*time.Second) {
					t.Error("the broker does not answer before the end")
				}
				switch ending {
				case "SIGINT":
					err = syscall.Kill(-cmd.Process.Pid, syscall.SIGINT)
				case "SIGKILL":
					err = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
				default:
					_, err = stdin.Write([]byte("end\n"))
				}
				if err != nil {
					t.Fatal(err)
				}
				_ = cmd.Wait() // most ways to end the process make Wait fail
				started.eventuallyGone(t)
			})
		}
	}
}

// TestURLWins uses its own broker as if it were another user's broker.
func TestURLWins(t *testing.T) {
	shared := Shared(t, Options{})
	var lines []string
	b, err := Start(t.Context(), Options{URL: shared.URL(), Version: "0.1", Log: func(line string) { lines = append(lines, line) }})
	if err != nil {
		t.Fatal(err)
	}
	if b.Source() != Environment || b.URL() != shared.URL() || b.Version() != shared.Version() {
		t.Errorf("got source %s, URL %s, version %s; want %s, %s, %s", b.Source(), b.RedactedURL(), b.Version(), Environment, shared.RedactedURL(), shared.Version())
	}
	if len(lines) != 1 || strings.Contains(lines[0], ":guest@") {
		t.Errorf(`lines: got %q, want 1 element and no ":guest@" in it`, lines)
	}
	if err := b.Kill(t.Context()); !errors.Is(err, ErrNotOurs) {
		t.Errorf("Kill: got %v, want ErrNotOurs", err)
	}
	if _, err := b.Ctl(t.Context(), "status"); !errors.Is(err, ErrNotOurs) {
		t.Errorf("Ctl: got %v, want ErrNotOurs", err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if !answers(shared.URL(), 5*time.Second) {
		t.Error("Close ended a broker that is not ours")
	}
	t.Setenv(EnvURL, shared.URL())
	versions, err := Versions(t.Context())
	if err != nil || len(versions) != 1 || versions[0] != shared.Line() {
		t.Errorf("versions %v, %v, want %s alone", versions, err, shared.Line())
	}
}

func TestPasswordIsKept(t *testing.T) {
	shared := Shared(t, Options{})
	for _, url := range []string{
		strings.Replace(shared.URL(), ":guest@", ":sesame@", 1), // refused
		"http://guest:sesame@127.0.0.1/",                        // a different scheme
		"amqp://guest:sesame%@127.0.0.1/",                       // cannot be parsed
	} {
		_, err := Start(t.Context(), Options{URL: url})
		if err == nil {
			t.Errorf("%s was accepted, want an error", redact(url))
			continue
		}
		if strings.Contains(err.Error(), "sesame") {
			t.Errorf("the error shows the password: %v", err)
		}
	}
}

func TestSharedIsShared(t *testing.T) {
	first, second := Shared(t, Options{}), Shared(t, Options{})
	if first != second {
		t.Error("Shared started two brokers for the same options")
	}
}

func TestBrokenConfigurationIsShown(t *testing.T) {
	for _, source := range []Source{Container, Node} {
		t.Run(string(source), func(t *testing.T) {
			needSource(t, source)
			_, err := Start(t.Context(), Options{Source: source, Config: "no.such.setting = 1"})
			if err == nil || !strings.Contains(err.Error(), "no.such.setting") || !strings.Contains(err.Error(), "the end of its log") {
				t.Errorf("want an error with the broker's own words about no.such.setting, got %v", err)
			}
			if !errors.Is(err, ErrNoBroker) {
				t.Errorf("the error does not wrap ErrNoBroker: %v", err)
			}
		})
	}
}

func TestNoBroker(t *testing.T) {
	t.Setenv(EnvURL, "")
	_, err := Start(t.Context(), Options{Source: Node, Version: "0.1"})
	if !errors.Is(err, ErrNoBroker) {
		t.Fatalf("got %v, want ErrNoBroker", err)
	}
	for _, way := range []string{"AMQP_URL", "make images", "rabbitmq-server", "tried: no node ("} {
		if !strings.Contains(err.Error(), way) {
			t.Errorf("got %q, want an error that mentions %s", err, way)
		}
	}
	t.Setenv(EnvSource, "cloud")
	if _, err := Start(t.Context(), Options{}); err == nil || !strings.Contains(err.Error(), `"cloud"`) {
		t.Errorf(`an unknown source: got %v, want an error with ""cloud""`, err)
	}
}

func TestStartIsCancelled(t *testing.T) {
	for _, source := range []Source{Container, Node} {
		t.Run(string(source), func(t *testing.T) {
			needSource(t, source)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			dir := t.TempDir()
			_, err := Start(ctx, Options{Source: source, Dir: dir})
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v, want a passed deadline", err)
			}
			if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
				t.Errorf("the directory still has the files %v (error %v)", entries, err)
			}
		})
	}
}

// A version that is not available is not replaced by one that is.
func TestOneVersion(t *testing.T) {
	t.Setenv(EnvURL, "")
	t.Setenv(EnvTestVersion, "0.1")
	if lines, err := Versions(t.Context()); !errors.Is(err, ErrNoBroker) {
		t.Errorf("found %v, %v, want ErrNoBroker", lines, err)
	}
}

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

// TestLife performs every operation on a broker from Start, for each source of brokers.
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
				traces.eventuallyGone(t) // Erlang's helper processes exit a moment after the node
				if err := b.Close(); err != nil {
					t.Errorf("the second Close returned %v, want nil", err)
				}
				if err := b.Kill(context.Background()); err == nil {
					t.Error("Kill after Close: got no error")
				}
			}()

			if len(lines) != 1 || !strings.Contains(lines[0], b.Version()) || strings.Contains(lines[0], "guest:guest") {
				t.Errorf("log: got %q, want one line with the version %s and without the password", lines, b.Version())
			}
			if b.Source() != source {
				t.Errorf("source %s, want %s", b.Source(), source)
			}
			if strings.Contains(b.RedactedURL(), ":guest@") {
				t.Errorf("RedactedURL returned %s, want a URL without the password", b.RedactedURL())
			}
			if out, err := b.Ctl(ctx, "environment"); err != nil || !strings.Contains(out, "{heartbeat,17}") {
				t.Errorf("the broker's environment does not contain {heartbeat,17} from Options.Config (error %v)", err)
			}
			if _, err := b.Ctl(ctx, "no_such_command"); err == nil {
				t.Error("Ctl with an unknown command: got no error")
			}
			if memory, err := b.MemoryBytes(ctx); err != nil || memory < 1<<20 {
				t.Errorf("MemoryBytes = %d (error %v), want at least 1 MiB", memory, err)
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
				t.Error("the broker answers after Kill, want an error")
			}
			if err := b.Start(ctx); err != nil {
				t.Fatal(err)
			}
			receive(t, b, "kept too")
			if b.URL() != url {
				t.Errorf("after a restart, the URL is %s, want %s as before", b.URL(), url)
			}

			if err := b.Pause(ctx); err != nil {
				t.Fatal(err)
			}
			paused := answers(url, time.Second)
			if err := b.Resume(ctx); err != nil {
				t.Fatal(err)
			}
			if paused {
				t.Error("the broker answers while it is paused, want no answer")
			}
			if !answers(url, 30*time.Second) {
				t.Error("the broker does not answer within 30s after Resume")
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

// send publishes a persistent message and waits for its confirm.
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
			t.Fatalf("waiting for the confirm: got %t (error %v), want true", ok, err)
		}
	})
}

func receive(t *testing.T, b *Broker, body string) {
	t.Helper()
	onChannel(t, b, func(channel *amqp.Channel) {
		delivery, ok, err := channel.Get(queue, true)
		if err != nil || !ok || string(delivery.Body) != body {
			t.Fatalf("basic.get: got %q (ok = %t, error %v), want %q", delivery.Body, ok, err, body)
		}
	})
}

// TestEndings checks that no trace of a broker is left after the process that started it ends, in every possible way.
func TestEndings(t *testing.T) {
	for source, endings := range map[Source][]string{
		// The guard does not depend on the source of the broker, so only one source is tested with all endings.
		Container: {"panic", "SIGKILL"},
		Node:      {"panic", "exit", "SIGINT", "SIGKILL"},
	} {
		for _, ending := range endings {
			t.Run(string(source)+"/"+ending, func(t *testing.T) {
				needSource(t, source)
				t.Parallel()
				cmd := exec.CommandContext(t.Context(), os.Args[0])
				cmd.Env = append(os.Environ(), envEnding+"="+ending, EnvSource+"="+string(source), EnvURL+"=")
				// In a separate session, the test can send SIGINT to the whole process group, as a terminal does on Ctrl-C.
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
					t.Fatalf("reading the JSON of the process that started the broker: %v: %s", err, stderr.String())
				}
				if found := started.left(t); len(found) == 0 {
					t.Fatal("found no trace of the running broker, want at least one for a meaningful test")
				}
				if !answers(started.URL, 5*time.Second) {
					t.Error("the broker does not answer within 5s while its process is running")
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
				_ = cmd.Wait() // Wait returns an error after most endings
				started.eventuallyGone(t)
			})
		}
	}
}

// TestURLWins checks that a broker at AMQP_URL is used and left alone. The test's own broker plays that role.
func TestURLWins(t *testing.T) {
	shared := Shared(t, Options{})
	var lines []string
	b, err := Start(t.Context(), Options{URL: shared.URL(), Version: "0.1", Log: func(line string) { lines = append(lines, line) }})
	if err != nil {
		t.Fatal(err)
	}
	if b.Source() != Environment || b.URL() != shared.URL() || b.Version() != shared.Version() {
		t.Errorf("got source %s, URL %s and version %s, want %s, %s and %s", b.Source(), b.RedactedURL(), b.Version(), Environment, shared.RedactedURL(), shared.Version())
	}
	if len(lines) != 1 || strings.Contains(lines[0], ":guest@") {
		t.Errorf(`log: got %q, want one line without ":guest@"`, lines)
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
		t.Error("the broker at AMQP_URL does not answer after Close, want it to keep running")
	}
	t.Setenv(EnvURL, shared.URL())
	versions, err := Versions(t.Context())
	if err != nil || len(versions) != 1 || versions[0] != shared.Line() {
		t.Errorf("Versions = %v (error %v), want only %s", versions, err, shared.Line())
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
			t.Errorf("Start with the URL %s: got no error", redact(url))
			continue
		}
		if strings.Contains(err.Error(), "sesame") {
			t.Errorf("got the error %v, want it without the password", err)
		}
	}
}

func TestSharedIsShared(t *testing.T) {
	first, second := Shared(t, Options{}), Shared(t, Options{})
	if first != second {
		t.Error("Shared returned two different brokers for the same options, want the same one")
	}
}

func TestBrokenConfigurationIsShown(t *testing.T) {
	for _, source := range []Source{Container, Node} {
		t.Run(string(source), func(t *testing.T) {
			needSource(t, source)
			_, err := Start(t.Context(), Options{Source: source, Config: "no.such.setting = 1"})
			if err == nil || !strings.Contains(err.Error(), "no.such.setting") || !strings.Contains(err.Error(), "the end of its log") {
				t.Errorf("got error %v, want one with the end of the broker's log about no.such.setting", err)
			}
			if !errors.Is(err, ErrNoBroker) {
				t.Errorf("got error %v, want ErrNoBroker", err)
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
			t.Errorf("got error %q, want it to contain %q", err, way)
		}
	}
	t.Setenv(EnvSource, "cloud")
	if _, err := Start(t.Context(), Options{}); err == nil || !strings.Contains(err.Error(), `"cloud"`) {
		t.Errorf(`an unknown source: got error %v, want one containing "cloud" in quotes`, err)
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
				t.Errorf("got error %v, want context.DeadlineExceeded", err)
			}
			if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
				t.Errorf("the directory contains %v (error %v), want it empty", entries, err)
			}
		})
	}
}

// If the requested version is not available, no other version is used instead.
func TestOneVersion(t *testing.T) {
	t.Setenv(EnvURL, "")
	t.Setenv(EnvTestVersion, "0.1")
	if lines, err := Versions(t.Context()); !errors.Is(err, ErrNoBroker) {
		t.Errorf("Versions = %v (error %v), want ErrNoBroker", lines, err)
	}
}

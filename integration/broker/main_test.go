package broker

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/rabbitdelay/rabbitdelay/integration/servers"
	"github.com/rabbitdelay/rabbitdelay/integration/tier"
)

// envEnding makes the test binary start a broker, print the broker's traces as one line of JSON, and end in the way
// that the variable names.
const envEnding = "RABBITDELAY_TEST_ENDING"

func TestMain(m *testing.M) {
	if ending := os.Getenv(envEnding); ending != "" {
		endWithBroker(ending)
		return
	}
	code := tier.Run(m, tier.Plan{Nightly: []string{"TestEndings", "TestLife"}}, nil)
	if err := CloseShared(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// traces identifies what exists on the machine while a broker runs.
type traces struct {
	URL       string `json:"url"`
	Container string `json:"container"` // its name
	Directory string `json:"directory"`
}

func tracesOf(b *Broker) traces {
	switch s := b.server.(type) {
	case *container:
		return traces{URL: b.url, Container: s.request.Name}
	case *node:
		return traces{URL: b.url, Directory: s.dir}
	default:
		panic(fmt.Sprintf("unexpected server type %T", s))
	}
}

func endWithBroker(ending string) {
	b, err := Start(context.Background(), Options{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(3)
	}
	if err := json.NewEncoder(os.Stdout).Encode(tracesOf(b)); err != nil {
		panic(err)
	}
	// The parent process writes a line after it has read the traces and checked that the broker is running.
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	switch ending {
	case "panic":
		panic("on purpose")
	case "exit":
		os.Exit(0)
	default:
		select {} // until a signal
	}
}

// needSource skips the test if the source of brokers is not available on this machine, and fails it if no source is.
func needSource(t *testing.T, source Source) {
	t.Helper()
	if os.Getenv(servers.EnvSkip) == "1" {
		t.Skipf("skipped: %s is 1", servers.EnvSkip)
	}
	here := func(s Source) error {
		if s == Node {
			_, _, err := scriptsDir()
			return err
		}
		found, err := imageLines(t.Context())
		if err == nil && len(found) == 0 {
			err = fmt.Errorf("no image of RabbitMQ")
		}
		return err
	}
	err := here(source)
	if err == nil {
		return
	}
	for _, other := range []Source{Container, Node} {
		if here(other) == nil {
			t.Skipf("skipped: source %s is not available (%v); the other source is tested", source, err)
		}
	}
	t.Fatalf("no source of brokers is available on this machine: %v", ErrNoBroker)
}

// left returns the traces of a broker that still exist.
func (tr traces) left(t *testing.T) []string {
	t.Helper()
	var found []string
	if tr.Container != "" && exec.Command("docker", "container", "inspect", tr.Container).Run() == nil {
		found = append(found, "container "+tr.Container)
	}
	if tr.Directory != "" {
		if _, err := os.Lstat(tr.Directory); err == nil {
			found = append(found, "directory "+tr.Directory)
		}
		// The node, its epmd and its children all have the directory in their
		// environment.
		entries, err := os.ReadDir("/proc")
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range entries {
			environment, err := os.ReadFile("/proc/" + entry.Name() + "/environ")
			if err == nil && strings.Contains(string(environment), tr.Directory) {
				command, _ := os.ReadFile("/proc/" + entry.Name() + "/cmdline")
				found = append(found, fmt.Sprintf("process %s %q", entry.Name(), command))
			}
		}
	}
	return found
}

// eventuallyGone waits until no trace of a broker is left.
func (tr traces) eventuallyGone(t *testing.T) {
	t.Helper()
	deadline := time.After(servers.Patience)
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	for {
		found := tr.left(t)
		if len(found) == 0 {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("after %v, got the remaining traces of the broker %v, want none", servers.Patience, found)
		case <-ticker.C:
		}
	}
}

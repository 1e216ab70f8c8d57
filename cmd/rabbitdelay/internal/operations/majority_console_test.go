package operations_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/integration/loopback"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
)

// nightConsole is a console that runs while a cluster loses nodes. It reads the event stream of overviews, as an open
// page does without a reload.
type nightConsole struct {
	address string

	mu   sync.Mutex
	last nightOverview
	text string // the last overview as JSON
}

// nightOverview has the fields of an overview that the tests check.
type nightOverview struct {
	At     string
	Alarms *[]string
	Status struct {
		Broker  *struct{ Source string }
		Layouts []struct {
			Name    string
			Waiting nightCount
		}
		Destinations []struct {
			Name      string
			Consumers *int64
			Waiting   nightCount
			Dead      *struct {
				Messages int64
				Unknown  bool
			}
		}
		Parked    struct{ Unknown bool }
		Findings  []struct{ ID string }
		Unchecked []struct{ Area, Why string }
	}
}

type nightCount struct {
	Ready   int64
	Leaving *int64
	Unknown bool
}

func (n *night) openConsole(t *testing.T, node int) *nightConsole {
	t.Helper()
	db := "sqlite:" + filepath.Join(t.TempDir(), "tasks.db")
	for _, args := range [][]string{{"migrate"}, {"tasks", "add", "--id", "later", "--queue", "orders.expire", "--delay", "30d"}} {
		if r := n.rabbitdelay(t, node, append(args, "--db", db)...); r.Code != 0 {
			t.Fatalf("%v: got %v, want exit code 0", args, r)
		}
	}
	ports, err := loopback.Ports(1)
	suite.MustSucceed(t, err)
	address := loopback.Address(ports[0])
	serve := suite.Command(t, "serve", "-f", n.files[node], "--db", db, "--listen", address)
	log := &strings.Builder{}
	serve.Stdout, serve.Stderr = log, log
	suite.MustSucceed(t, serve.Start())
	t.Cleanup(func() {
		_ = serve.Process.Kill()
		_ = serve.Wait()
		if t.Failed() {
			t.Logf("the console's log:\n%s", log)
		}
	})
	c := &nightConsole{address: address}
	go c.follow(t)
	return c
}

// follow keeps the newest overview from the event stream, and reconnects only if the stream ends.
func (c *nightConsole) follow(t *testing.T) {
	var client http.Client // without a timeout, because the stream ends only with the test's context
	defer client.CloseIdleConnections()
	for t.Context().Err() == nil {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+c.address+"/api/v1/events", http.NoBody)
		if err != nil {
			return
		}
		resp, err := client.Do(req)
		if err != nil {
			<-time.After(100 * time.Millisecond) // the console is starting
			continue
		}
		lines := bufio.NewScanner(resp.Body)
		lines.Buffer(nil, 16<<20)
		for lines.Scan() {
			text, ok := strings.CutPrefix(lines.Text(), "data: ")
			var o nightOverview
			if ok && json.Unmarshal([]byte(text), &o) == nil {
				c.mu.Lock()
				c.last, c.text = o, text
				c.mu.Unlock()
			}
		}
		_ = resp.Body.Close()
	}
}

// until waits for an overview for which complain returns an empty string.
func (c *nightConsole) until(t *testing.T, what string, complain func(o nightOverview) string) {
	t.Helper()
	for deadline := time.Now().Add(suite.Patience); ; {
		c.mu.Lock()
		o, text := c.last, c.text
		c.mu.Unlock()
		wrong := complain(o)
		if wrong == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: the last overview is wrong: %s\n%s", what, wrong, text)
		}
		<-time.After(200 * time.Millisecond)
	}
}

func (o nightOverview) findings() []string {
	ids := []string{}
	for _, f := range o.Status.Findings {
		ids = append(ids, f.ID)
	}
	return ids
}

// unknown lists the values that the overview reports as unknown.
func (o nightOverview) unknown() []string {
	names := []string{}
	for _, l := range o.Status.Layouts {
		if l.Waiting.Unknown {
			names = append(names, l.Name)
		}
	}
	for _, d := range o.Status.Destinations {
		if d.Waiting.Unknown && d.Consumers == nil && d.Waiting.Leaving == nil {
			names = append(names, d.Name)
		}
		if d.Dead != nil && d.Dead.Unknown {
			names = append(names, "dead letters of "+d.Name)
		}
	}
	if o.Status.Parked.Unknown {
		names = append(names, "parked")
	}
	return names
}

func (c *nightConsole) get(t *testing.T, path string) (code int, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+c.address+path, http.NoBody)
	suite.MustSucceed(t, err)
	client := http.Client{Timeout: suite.Patience}
	defer client.CloseIdleConnections()
	resp, err := client.Do(req)
	suite.MustSucceed(t, err)
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	suite.MustSucceed(t, err)
	return resp.StatusCode, string(text)
}

// page fails the test unless a page contains all words of want and none of never.
func (c *nightConsole) page(t *testing.T, path string, want, never []string) {
	t.Helper()
	code, text := c.get(t, path)
	if code != http.StatusOK {
		t.Errorf("GET %s: got %d, want 200", path, code)
	}
	for _, w := range want {
		if !strings.Contains(text, w) {
			t.Errorf("page %s: got\n%s\nwant it to contain %q", path, text, w)
		}
	}
	for _, w := range never {
		if strings.Contains(text, w) {
			t.Errorf("page %s: got\n%s\nwant it not to contain %q", path, text, w)
		}
	}
}

// ready checks that the process is ready. It stays ready without a majority, because the remaining nodes accept its
// connections, and neither a restart nor less traffic would help.
func (c *nightConsole) ready(t *testing.T) {
	t.Helper()
	if code, text := c.get(t, "/readyz"); code != http.StatusOK {
		t.Errorf("/readyz: got %d %s, want 200", code, text)
	}
}

// calm checks that all values are known and that no node is missing.
func (c *nightConsole) calm(t *testing.T) {
	t.Helper()
	c.until(t, "with all nodes", func(o nightOverview) string {
		ids := o.findings()
		switch {
		case o.Status.Broker == nil:
			return "the broker was not read"
		case slices.Contains(ids, "quorum-lost"), slices.Contains(ids, "quorum-offline"), slices.Contains(ids, "node-down"), slices.Contains(ids, "queue-down"):
			return fmt.Sprint("findings: ", ids)
		case len(o.unknown()) > 0:
			return fmt.Sprint("unknown: ", o.unknown())
		case !o.dead(5):
			return "5 dead letters are missing"
		}
		return ""
	})
	c.ready(t)
	c.page(t, "/", []string{nightDead}, []string{"quorum-lost", "does not answer"})
}

func (o nightOverview) dead(n int64) bool {
	for _, d := range o.Status.Destinations {
		if d.Name == "orders.expire" && d.Dead != nil && !d.Dead.Unknown {
			return d.Dead.Messages == n
		}
	}
	return false
}

// oneDown checks that the missing node is named and that all values are known.
func (c *nightConsole) oneDown(t *testing.T) {
	t.Helper()
	c.until(t, "with one node down", func(o nightOverview) string {
		ids := o.findings()
		switch {
		case o.Status.Broker == nil:
			return "the broker was not read"
		case slices.Contains(ids, "quorum-lost"), !slices.Contains(ids, "node-down"), !slices.Contains(ids, "quorum-offline"):
			return fmt.Sprint("findings: ", ids)
		case len(o.unknown()) > 0, !o.dead(5):
			return fmt.Sprint("unknown: ", o.unknown())
		}
		return ""
	})
	c.ready(t)
	c.page(t, "/", []string{"node-down", "rabbit@n3"}, []string{"quorum-lost", "does not answer"})
}

// lost checks that the lost majority is the first finding, that counts are reported as unknown rather than 0, and that
// the queue on a node that is down is named.
func (c *nightConsole) lost(t *testing.T) {
	t.Helper()
	all := []string{"delay.bucket.r3", "orders.expire", "dead letters of orders.expire", "parked"}
	c.until(t, "without a majority", func(o nightOverview) string {
		ids, unknown := o.findings(), o.unknown()
		switch {
		case o.Status.Broker == nil:
			return "the broker was not read"
		case len(ids) == 0 || ids[0] != "quorum-lost" || !slices.Contains(ids, "queue-down"):
			return fmt.Sprint("findings: ", ids)
		}
		for _, name := range all {
			if !slices.ContainsFunc(unknown, func(u string) bool { return strings.HasPrefix(u, name) }) {
				return fmt.Sprintf("%s is not among the unknown values %v", name, unknown)
			}
		}
		return ""
	})
	c.ready(t)
	c.page(t, "/", []string{"quorum-lost", "unknown", nightClassic}, []string{"No problems", "No dead letters.", "No findings.", "No destinations."})
	c.page(t, "/dead", []string{"unknown"}, []string{"No dead letters.", "No messages are parked"})
	c.page(t, "/layouts", []string{"unknown"}, nil)
	c.page(t, "/trace?id=later", []string{"Not checked"}, nil)
	for _, path := range []string{"/api/v1/status", "/api/v1/doctor"} {
		if code, text := c.get(t, path); code != http.StatusOK || strings.Index(text, `"id":"`) != strings.Index(text, `"id":"quorum-lost"`) {
			t.Errorf("GET %s: got %d and %s, want 200 and quorum-lost as the first finding", path, code, text)
		}
	}
}

package operations_test

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// On a virtual host with a limit of 100 queues, declaring the default layout fails and leaves no queues behind. The
// error contains the limit and the number of queues, and suggests a layout that fits. The suggested layout works.
func TestQueueLimit(t *testing.T) {
	suite.OnSomeVhosts(t, func(t *testing.T, v *suite.Vhost) {
		if v.Mgmt == nil {
			t.Skip("skipped: the limit can only be set with the management API")
		}
		_, err := v.Mgmt.Call(t.Context(), http.MethodPut, v.Mgmt.InVhost("vhost-limits")+"/max-queues", map[string]any{"value": 100}, nil)
		suite.MustSucceed(t, err)
		says := []string{"allows 100 queues", "need 283", "delay.bucket.layout: binary (29 queues)"}
		checkError := func(what, text string) {
			t.Helper()
			for _, want := range says {
				if !strings.Contains(text, want) {
					t.Errorf("%s: got %s\nwant it to contain %q", what, text, want)
				}
			}
			if n := strings.Count(text, "limit in vhost"); n > 1 {
				t.Errorf("%s: the error contains the broker's refusal %d times, want at most once: %s", what, n, text)
			}
		}
		nothingLeft := func(what string) {
			t.Helper()
			suite.Eventually(t, "no queue is left after "+what, func() bool {
				found, err := v.Mgmt.Queues(t.Context())
				suite.MustSucceed(t, err)
				for name := range found {
					if strings.HasPrefix(name, "delay.bucket") {
						return false
					}
				}
				return true
			})
		}

		began := time.Now()
		_, err = amqpx.Open(t.Context(), amqpx.Config{URL: v.URL})
		if !errors.Is(err, topology.ErrQuota) {
			t.Fatalf("Open: got error %v, want topology.ErrQuota", err)
		}
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("Open returned after %v, want at most 20s", took)
		}
		checkError("Open", err.Error())
		nothingLeft("Open")

		dir := t.TempDir()
		file := func(name, layout string) string {
			path := filepath.Join(dir, name)
			suite.MustSucceed(t, os.WriteFile(path, fmt.Appendf(nil, "broker: {url: %q, management_url: %q}\ndelay: {bucket: {%s}}\n", v.URL, v.Mgmt.Endpoint(), layout), 0o600))
			return path
		}
		for _, command := range []string{"plan", "apply"} {
			got := suite.RunCLI(t.Context(), command, "-f", file("default.yaml", ""))
			if got.Code != 1 {
				t.Errorf("%s: got %s, want exit code 1", command, got)
			}
			checkError(command, got.Stderr)
		}
		nothingLeft("apply")
		found := suite.RunCLI(t.Context(), "doctor", "-f", file("default.yaml", ""))
		if found.Code != 1 || !strings.Contains(found.Stdout, "queue-limit") {
			t.Errorf(`doctor: got %s, want exit code 1 and Stdout with "queue-limit"`, found)
		}
		send := suite.RunCLI(t.Context(), "send", "--queue", "q", "--delay", "1s", "-f", file("default.yaml", ""))
		if send.Code != 1 {
			t.Errorf("send: got %s, want exit code 1", send)
		}
		checkError("send", send.Stderr)

		if got := suite.RunCLI(t.Context(), "apply", "-f", file("binary.yaml", "layout: binary")); got.Code != 0 {
			t.Errorf("apply with the suggested layout: got %s, want exit code 0", got)
		}
		strategy, err := dlx.NewBucket(dlx.BucketConfig{Layout: dlx.LayoutBinary})
		suite.MustSucceed(t, err)
		client, err := amqpx.Open(t.Context(), amqpx.Config{URL: v.URL, Strategy: strategy})
		suite.MustSucceed(t, err)
		suite.MustSucceed(t, client.Send(t.Context(), amqpx.Message{Queue: "q", Delay: time.Second}))
		suite.MustSucceed(t, client.Close(t.Context()))
	})
}

// If a virtual host allows too few connections, or a user may open too few channels, the error contains the limit and
// says what to do, without wrong advice. The client works as soon as the limit is raised.
func TestConnectionAndChannelLimits(t *testing.T) {
	suite.OnSomePrepared(t, func(t *testing.T, v *suite.Vhost) {
		if v.Mgmt == nil {
			t.Skip("skipped: the limits can only be set with the management API")
		}
		address := v.User(t, "limited", "", [3]string{".*", ".*", ".*"})
		limit := func(path string, n int) {
			t.Helper()
			v.Manage(t, http.MethodPut, "/api/"+path, map[string]any{"value": n})
		}
		send := func(queue string) suite.Ran {
			return suite.RunCLI(t.Context(), "send", "--queue", queue, "--delay", "1s", "--timeout", "20s", "--url", address)
		}
		refused := func(what string, got suite.Ran, says ...string) {
			t.Helper()
			if got.Code == 0 {
				t.Errorf("%s: got %s, want an exit code other than 0", what, got)
			}
			for _, want := range says {
				if !strings.Contains(got.Stderr, want) {
					t.Errorf("%s: got %s\nwant it to contain %q", what, got.Stderr, want)
				}
			}
			for _, wrong := range []string{"does the virtual host exist", "makes the broker close the connection"} {
				if strings.Contains(got.Stderr, wrong) {
					t.Errorf("%s: got %s\nwant it without the wrong advice %q", what, got.Stderr, wrong)
				}
			}
		}
		if got := send("before"); got.Code != 0 {
			t.Fatalf("send without a limit: got %s, want exit code 0", got)
		}
		connections := "vhost-limits/" + v.Name + "/max-connections"
		limit(connections, 1)
		refused("one connection", send("first"), "connection limit (1) is reached", "a client uses up to three connections")
		if got := suite.RunCLI(t.Context(), "doctor", "--url", address); !strings.Contains(got.String(), "a client uses up to three connections") {
			t.Errorf("doctor at the connection limit: got %s, want output containing \"a client uses up to three connections\"", got)
		}
		limit(connections, -1)

		channels := "user-limits/limited-" + v.Name + "/max-channels"
		for _, n := range []int{1, 2} {
			limit(channels, n)
			refused(fmt.Sprintf("%d channels", n), send(fmt.Sprintf("second-%d", n)), "number of channels opened", "raise max-channels")
		}
		limit(channels, -1)
		if got := send("second-2"); got.Code != 0 {
			t.Errorf("after the limit was raised: got %s, want exit code 0", got)
		}
	})
}

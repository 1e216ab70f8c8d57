package suite

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/integration/broker"
	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/live"
)

// Vhost is a virtual host of a test's own, so that its policies and objects
// meet no others.
type Vhost struct {
	Name   string
	URL    string
	Conn   *amqp.Connection
	Mgmt   *live.Management
	Broker *broker.Broker

	user string // of the suite
}

// Dial connects to the vhost for the time of the test.
func (v *Vhost) Dial(t *testing.T) *amqp.Connection {
	t.Helper()
	conn, err := amqp.Dial(v.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.CloseDeadline(time.Now().Add(10 * time.Second)) }) // the broker may have closed it
	return conn
}

// Channel is for what a test does beside the code under test. It ends with its connection: a broker was seen that did
// not answer when it was closed by itself, and amqp091 waits for that without a limit.
func (v *Vhost) Channel(t *testing.T) *amqp.Channel {
	t.Helper()
	ch, err := v.Conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	return ch
}

// OnVhosts runs a test on every broker version at hand, in a fresh virtual host.
func OnVhosts(t *testing.T, test func(t *testing.T, v *Vhost)) {
	t.Helper()
	onVersions(t, NewVhost, test)
}

// vhostFunc returns a virtual host for the time of a test.
type vhostFunc func(t *testing.T, b *broker.Broker) *Vhost

func onVersions(t *testing.T, vhost vhostFunc, test func(t *testing.T, v *Vhost)) {
	t.Helper()
	versions, err := broker.Versions(t.Context())
	if err != nil {
		broker.Shared(t, broker.Options{}) // skips or fails with the reason
	}
	for _, version := range versions {
		onVhost(t, version, version, vhost, test)
	}
}

// OnNewest runs a test whose outcome no version decides in a fresh virtual host on the
// newest broker.
func OnNewest(t *testing.T, test func(t *testing.T, v *Vhost)) {
	t.Helper()
	onVhost(t, "newest", "", NewVhost, test)
}

func onVhost(t *testing.T, name, version string, vhost vhostFunc, test func(t *testing.T, v *Vhost)) {
	t.Run(name, func(t *testing.T) {
		t.Parallel() // the brokers know nothing of each other, and most of the time is waiting
		b := broker.Shared(t, broker.Options{Version: version})
		if b.ManagementURL() == "" {
			t.Skipf("skipped: the broker at AMQP_URL is used without its management API; set %s", broker.EnvManagementURL)
		}
		test(t, vhost(t, b))
	})
}

var vhostNumber atomic.Int64

func newVhostName() string {
	return fmt.Sprintf("t%d-%d", time.Now().UnixNano(), vhostNumber.Add(1))
}

// NewVhost creates a vhost for the time of the test.
func NewVhost(t *testing.T, b *broker.Broker) *Vhost {
	t.Helper()
	return NamedVhost(t, b, newVhostName())
}

// NamedVhost creates a vhost of a given name for the time of the test.
func NamedVhost(t *testing.T, b *broker.Broker, name string) *Vhost {
	t.Helper()
	v := newVhost(t, b, name)
	t.Cleanup(func() { v.remove(t) })
	v.open(t)
	return v
}

// newVhost returns the virtual host of a name, which need not exist yet.
func newVhost(t *testing.T, b *broker.Broker, name string) *Vhost {
	t.Helper()
	u, err := url.Parse(b.URL())
	MustSucceed(t, err)
	m, err := url.Parse(b.ManagementURL())
	MustSucceed(t, err)
	password, _ := u.User.Password()
	v := &Vhost{Name: name, Broker: b, user: u.User.Username()}
	m.User = nil
	v.Mgmt, err = live.NewManagement(live.ManagementConfig{URL: m.String(), Username: v.user, Password: password, Vhost: v.Name, Timeout: Patience})
	MustSucceed(t, err)
	u.Path = "/" + v.Name
	v.URL = u.String()
	return v
}

// open creates the virtual host, unless it is there, and connects to it.
func (v *Vhost) open(t *testing.T) {
	t.Helper()
	v.Manage(t, http.MethodPut, "/api/vhosts/"+v.Name, map[string]any{})
	v.Permit(t, v.user, [3]string{".*", ".*", ".*"})
	v.Conn = v.Dial(t)
}

// remove deletes the virtual host. A broker of ours takes up to half a minute for the queues
// of a layout, for which nobody waits: what is left ends with the broker.
func (v *Vhost) remove(t *testing.T) {
	if v.Broker.Source() == broker.Environment {
		v.Manage(t, http.MethodDelete, "/api/vhosts/"+v.Name, nil)
		return
	}
	go func() {
		_, _ = v.Mgmt.Call(context.Background(), http.MethodDelete, "/api/vhosts/"+v.Name, nil, nil)
	}()
}

// Manage changes something through the management API, also when the test has ended.
func (v *Vhost) Manage(t *testing.T, method, path string, body any) {
	t.Helper()
	if _, err := v.Mgmt.Call(context.WithoutCancel(t.Context()), method, path, body, nil); err != nil {
		t.Fatal(err)
	}
}

// MustApply creates what is wanted, or fails the test.
func MustApply(t *testing.T, b live.Broker, want topology.Topology) live.Report {
	t.Helper()
	report, err := b.Apply(t.Context(), want, live.ApplyOptions{})
	if err != nil {
		t.Fatalf("apply: %v", err)
	}
	return report
}

// Managed is the virtual host as its management API shows it, unmanaged as AMQP does.
func (v *Vhost) Managed() live.Broker { return live.Broker{Conn: v.Conn, Inspector: v.Mgmt} }

// Unmanaged returns the broker over AMQP alone.
func (v *Vhost) Unmanaged() live.Broker { return live.Broker{Conn: v.Conn} }

// Publish puts n messages into a queue.
func Publish(t *testing.T, v *Vhost, queue string, n int) {
	t.Helper()
	ch := v.Channel(t)
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	for range n {
		c, err := ch.PublishWithDeferredConfirm("", queue, true, false, amqp.Publishing{Body: []byte("x"), DeliveryMode: amqp.Persistent})
		if err != nil {
			t.Fatal(err)
		}
		if ok, err := c.WaitContext(t.Context()); err != nil || !ok {
			t.Fatalf("confirm %v, %v", ok, err)
		}
	}
}

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
	"github.com/rabbitdelay/rabbitdelay/integration/tier"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/topology"
	public "github.com/rabbitdelay/rabbitdelay/topology/live"
)

// Vhost is a virtual host for a single test, so that its policies and objects do not affect other tests.
type Vhost struct {
	Name string
	URL  string
	Conn *amqp.Connection
	Mgmt *live.Management
	// Management is the public form of Mgmt, for package inspect.
	Management *public.Management
	Broker     *broker.Broker

	user string // the user with which the suite connects
}

// Dial connects to the virtual host for the duration of the test.
func (v *Vhost) Dial(t *testing.T) *amqp.Connection {
	t.Helper()
	conn, err := amqp.Dial(v.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.CloseDeadline(time.Now().Add(10 * time.Second)) }) // the broker may have closed it
	return conn
}

// Channel returns a channel for operations that are not part of the code under test. It is closed together with its
// connection. Closing it separately is not safe, because a broker once did not answer, and amqp091 waits for the answer
// without a timeout.
func (v *Vhost) Channel(t *testing.T) *amqp.Channel {
	t.Helper()
	ch, err := v.Conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	return ch
}

// OnVhosts runs a test on every available broker version, in a new virtual host.
func OnVhosts(t *testing.T, test func(t *testing.T, v *Vhost)) {
	t.Helper()
	onVersions(t, NewVhost, test)
}

// vhostFunc returns a virtual host for the duration of a test.
type vhostFunc func(t *testing.T, b *broker.Broker) *Vhost

// OnSomeVhosts is the same as OnVhosts, for a test whose outcome hardly depends on the version. In make test-servers,
// it runs on one version, which tier.Sample chooses.
func OnSomeVhosts(t *testing.T, test func(t *testing.T, v *Vhost)) {
	t.Helper()
	onSomeVersions(t, NewVhost, test)
}

func onVersions(t *testing.T, vhost vhostFunc, test func(t *testing.T, v *Vhost)) {
	t.Helper()
	for _, version := range versions(t) {
		onVhost(t, version, version, vhost, test)
	}
}

func onSomeVersions(t *testing.T, vhost vhostFunc, test func(t *testing.T, v *Vhost)) {
	t.Helper()
	for _, version := range tier.Sample(t.Name(), versions(t)) {
		onVhost(t, version, version, vhost, test)
	}
}

// versions returns the available release lines, the newest last.
func versions(t *testing.T) []string {
	t.Helper()
	all, err := broker.Versions(t.Context())
	if err != nil {
		broker.Shared(t, broker.Options{}) // skips or fails with the reason
	}
	return all
}

// OnNewest runs a test whose outcome does not depend on the version. It uses a new virtual host on the newest broker.
func OnNewest(t *testing.T, test func(t *testing.T, v *Vhost)) {
	t.Helper()
	onVhost(t, "newest", "", NewVhost, test)
}

func onVhost(t *testing.T, name, version string, vhost vhostFunc, test func(t *testing.T, v *Vhost)) {
	t.Run(name, func(t *testing.T) {
		t.Parallel() // the brokers are independent, and most of the time is waiting
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

// NewVhost creates a virtual host for the duration of the test.
func NewVhost(t *testing.T, b *broker.Broker) *Vhost {
	t.Helper()
	return NamedVhost(t, b, newVhostName())
}

// NamedVhost creates a virtual host with the given name for the duration of the test.
func NamedVhost(t *testing.T, b *broker.Broker, name string) *Vhost {
	t.Helper()
	v := newVhost(t, b, name)
	t.Cleanup(func() { v.remove(t) })
	v.open(t)
	return v
}

// newVhost returns the virtual host with the given name, which need not exist yet.
func newVhost(t *testing.T, b *broker.Broker, name string) *Vhost {
	t.Helper()
	u, err := url.Parse(b.URL())
	MustSucceed(t, err)
	m, err := url.Parse(b.ManagementURL())
	MustSucceed(t, err)
	password, _ := u.User.Password()
	v := &Vhost{Name: name, Broker: b, user: u.User.Username()}
	m.User = nil
	v.Management, err = public.NewManagement(public.ManagementConfig{URL: m.String(), Username: v.user, Password: password, Vhost: v.Name, Timeout: Patience})
	MustSucceed(t, err)
	v.Mgmt = live.Internal(v.Management)
	u.Path = "/" + v.Name
	v.URL = u.String()
	return v
}

// open creates the virtual host, unless it exists, and connects to it.
func (v *Vhost) open(t *testing.T) {
	t.Helper()
	v.Manage(t, http.MethodPut, "/api/vhosts/"+v.Name, map[string]any{})
	v.Permit(t, v.user, [3]string{".*", ".*", ".*"})
	v.Conn = v.Dial(t)
}

// remove deletes the virtual host. A broker that Start has started takes up to half a minute to delete the queues of a
// layout. Tests do not wait for that, because all objects are removed together with the broker.
func (v *Vhost) remove(t *testing.T) {
	if v.Broker.Source() == broker.Environment {
		v.Manage(t, http.MethodDelete, "/api/vhosts/"+v.Name, nil)
		return
	}
	go func() {
		_, _ = v.Mgmt.Call(context.Background(), http.MethodDelete, "/api/vhosts/"+v.Name, nil, nil)
	}()
}

// Manage makes a change through the management API, even after the test has ended.
func (v *Vhost) Manage(t *testing.T, method, path string, body any) {
	t.Helper()
	if _, err := v.Mgmt.Call(context.WithoutCancel(t.Context()), method, path, body, nil); err != nil {
		t.Fatal(err)
	}
}

// MustApply creates the given topology, or fails the test.
func MustApply(t *testing.T, b live.Broker, want topology.Topology) live.Report {
	t.Helper()
	report, err := b.Apply(t.Context(), want, live.ApplyOptions{})
	if err != nil {
		t.Fatalf("applying the topology: %v", err)
	}
	return report
}

// Managed returns the virtual host's broker with the management API for inspection.
func (v *Vhost) Managed() live.Broker { return live.Broker{Conn: v.Conn, Inspector: v.Mgmt} }

// Unmanaged returns the virtual host's broker without the management API, using AMQP only.
func (v *Vhost) Unmanaged() live.Broker { return live.Broker{Conn: v.Conn} }

// Publish publishes n messages to a queue and waits for their confirms.
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
			t.Fatalf("waiting for the confirm: got %v and error %v, want true and nil", ok, err)
		}
	}
}

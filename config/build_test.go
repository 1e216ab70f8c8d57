package config

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// The log of the strategy has its longest delay in the form of other durations, and not with thousands of hours.
func TestLoggedMaxDelay(t *testing.T) {
	core, seen := observer.New(zap.InfoLevel)
	c := mustLoad(t, "broker: {url: amqp://localhost}\ndelay: {strategy: bucket}\n")
	if _, err := c.Strategy(t.Context(), zap.New(core)); err != nil {
		t.Fatal(err)
	}
	list := seen.FilterMessage("strategy").All()
	if len(list) != 1 || list[0].ContextMap()["max_delay"] != "383d23h59m59.99s" {
		t.Errorf(`log lines of the strategy: got %v, want one with max_delay = "383d23h59m59.99s"`, list)
	}
}

func mustLoad(t *testing.T, yaml string) *Config {
	t.Helper()
	c, err := load([]byte(yaml), Source{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func mustStrategy(t *testing.T, c *Config) amqpx.Strategy {
	t.Helper()
	s, err := c.Strategy(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestStrategies(t *testing.T) {
	for _, c := range []struct {
		yaml, name string
		max        time.Duration
		queue      string // a queue that the topology contains
	}{
		{"", "bucket", 384*24*time.Hour - 10*time.Millisecond, "delay.bucket.1h"},
		{"delay: {bucket: {resolution: 100ms}}", "bucket", 384*24*time.Hour - 100*time.Millisecond, "delay.bucket.clock-100ms.1h"},
		{"delay: {bucket: {layout: hex}, queue_type: classic, prefix: p}", "bucket", 0, "p.bucket.hex-classic.1m42s400ms"},
		{"delay: {strategy: ttl, ttl: {delays: [60s, 2h]}}", "ttl", 2 * time.Hour, "delay.ttl.2h"},
		{"delay: {strategy: auto, ttl: {delays: [60s]}}", "auto", 0, "delay.ttl.1m"},
		{"delay: {strategy: auto, ttl: {delays: [60s]}}", "auto", 0, "delay.bucket.1m"},
	} {
		s := mustStrategy(t, mustLoad(t, c.yaml))
		if s.Name() != c.name || c.max != 0 && s.MaxDelay() != c.max {
			t.Errorf("%s: got strategy %s with maximum delay %v, want %s with %v (0 means any)", c.yaml, s.Name(), s.MaxDelay(), c.name, c.max)
		}
		if _, ok := s.Topology().Queue(c.queue); !ok {
			t.Errorf("%s: the topology has no queue %s, want it", c.yaml, c.queue)
		}
	}
}

// The broker is probed for the plugin only if the plugin could be used.
func TestProbesForThePluginOnlyWithRange(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := "broker: {url: 'amqp://u:hunter2@" + l.Addr().String() + "/', dial_timeout: 1s}\n"
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for _, yaml := range []string{"delay: {strategy: bucket, plugin: {max: 1h}}", "delay: {strategy: auto}"} {
		mustStrategy(t, mustLoad(t, nobody+yaml))
	}
	for _, yaml := range []string{"delay: {strategy: auto, plugin: {max: 1h}}", "delay: {strategy: auto, plugin: {min: 1s}}", "delay: {strategy: plugin}"} {
		_, err := mustLoad(t, nobody+yaml).Strategy(t.Context(), nil)
		if err == nil || !strings.Contains(err.Error(), "connection refused") || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("Strategy of %s: got %v, want a refused connection and no password", yaml, err)
		}
	}
}

func TestDescribe(t *testing.T) {
	c := mustLoad(t, `
delay:
  prefix: p
  queue_type: classic
  bucket: {radices: [4, 4]}
  previous: [{layout: hex}, {layout: clock}, {layout: hex}]
exchanges: [{name: events, type: headers}]
queues: [{name: own, type: quorum}]
destinations:
  - {queue: own}
  - {queue: orders.expire, dead_letter: graveyard}
  - {name: e, exchange: events, routing_key: k}
`)
	s := mustStrategy(t, c)
	got, err := c.Describe(s)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]topology.QueueType{
		"own": topology.Quorum, "own.dead": topology.Classic, "orders.expire": topology.Classic, "graveyard": topology.Classic,
		"p.route.events:k": topology.Quorum, "p.parked": topology.Quorum, "p.bucket.r4x4-classic.300ms": topology.Classic,
	} {
		if q, ok := got.Queue(name); !ok || q.Type != want {
			t.Errorf("queue %s: declared: %t, type: %s, want true and %s", name, ok, q.Type, want)
		}
	}
	for _, q := range got.Queues {
		if strings.HasPrefix(q.Name, "p.bucket.") && !strings.HasPrefix(q.Name, "p.bucket.r4x4-classic.") {
			t.Errorf("the topology has the queue %s of a previous layout, want only queues of r4x4-classic", q.Name)
		}
	}
	bindings := map[string]int{}
	for _, b := range got.Bindings {
		if b.Exchange == "p.deliver" {
			bindings[b.RoutingKey+" -> "+b.Queue]++
		}
	}
	stars := func(n int) string { return strings.Repeat(".*", n) }
	for _, d := range []string{"own", "orders.expire", "p.route.events:k"} {
		for _, tag := range []string{"r4x4" + stars(2), "hex" + stars(8), "clock" + stars(6)} {
			key := tag + "." + d + " -> " + d
			if bindings[key] != 1 {
				t.Errorf("binding %q exists %d times, want once", key, bindings[key])
			}
			delete(bindings, key)
		}
	}
	if len(bindings) != 0 {
		t.Errorf("the topology has the additional bindings %v, want none", bindings)
	}
	if err := got.Validate(topology.DelayPrefix("p")); err != nil {
		t.Errorf("Validate: got %v, want no error", err)
	}
}

// In the layout of another system, that system's programs declare the queues that they consume, so Describe leaves
// these out. Destinations are also bound to the previous layouts.
func TestDescribeForeignLayout(t *testing.T) {
	c := mustLoad(t, `
delay:
  bucket: {layout: celery}
  previous: [{layout: nservicebus}, {layout: clock}]
queues: [{name: own, type: quorum}]
destinations:
  - {queue: celery}
  - {queue: own}
  - {exchange: amq.topic, routing_key: k}
`)
	s := mustStrategy(t, c)
	got, err := c.Describe(s)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{
		"own": true, "delay.route.amq.topic:k": true, "celery_delayed_27": true, "delay.parked": true,
		"celery": false, "celery.dead": false, "own.dead": false, "nsb.v2.delay-level-00": false, "delay.bucket.1s": false,
	} {
		if _, there := got.Queue(name); there != want {
			t.Errorf("queue %s declared: got %t, want %t", name, there, want)
		}
	}
	var from []string
	for _, b := range s.Bindings(topology.Destination{Queue: "celery"}) {
		from = append(from, b.Exchange)
	}
	if want := []string{"celery_delayed_delivery", "nsb.v2.delay-delivery", "delay.deliver"}; !slices.Equal(from, want) {
		t.Errorf("the queue celery is bound to %v, want %v", from, want)
	}
	if s.Name() != "celery" || s.MaxDelay() != (1<<28-1)*time.Second {
		t.Errorf("the strategy is %s with the maximum delay %v, want celery with 2^28-1 s", s.Name(), s.MaxDelay())
	}
}

func TestDescribeConflict(t *testing.T) {
	c := mustLoad(t, "exchanges: [{name: x.delay, type: fanout}]\n")
	c.Topology.Exchanges[0].Name = "delay.bucket.level-0"
	_, err := c.Describe(mustStrategy(t, c))
	if !errors.Is(err, topology.ErrMerge) {
		t.Errorf("Describe: got %v, want topology.ErrMerge", err)
	}
}

// Listed refuses the strategies' own objects and, with declare: listed, destinations that are not listed.
func TestListed(t *testing.T) {
	c := mustLoad(t, "delay: {prefix: p}\ndestinations: [{queue: q}]\nbroker: {declare: listed}\n")
	for d, want := range map[topology.Destination]string{
		{Queue: "q"}:           "",
		{Queue: "other"}:       "declare: listed",
		{Queue: "p.parked"}:    "belongs to the delay strategies",
		{Queue: "p.bucket.1s"}: "belongs to the delay strategies",
		{Exchange: "p.deliver", RoutingKey: "clock.0.0.q"}: "belongs to the delay strategies",
	} {
		if err := c.Listed(d); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf(`Listed(%v): got %v, want an error with %q ("" means no error)`, d, err, want)
		}
	}
}

func TestDestinationTooLong(t *testing.T) {
	name := strings.Repeat("q", 250)
	_, err := load([]byte("queues: []\ndestinations:\n  - queue: "+name+"\n"), Source{})
	if err == nil || !strings.Contains(err.Error(), "destinations[0]") || !strings.Contains(err.Error(), "shorten") {
		t.Errorf(`load: got %v, want an error with "destinations[0]" and "shorten"`, err)
	}
}

func writePair(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return write("cert.pem", "CERTIFICATE", der), write("key.pem", "PRIVATE KEY", keyDER)
}

func TestTLSFiles(t *testing.T) {
	cert, key := writePair(t)
	c := &Config{Broker: Broker{
		URL: "amqps://h/", Config: amqpx.Config{ExternalAuth: true}, TLS: TLS{CA: cert, Cert: cert, Key: key, ServerName: "rabbit"},
	}}
	client, err := c.Client(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := client.GetTLS(); got.RootCAs == nil || len(got.Certificates) != 1 || got.ServerName != "rabbit" || !client.ExternalAuth {
		t.Errorf(`the client's TLS configuration: got %+v, want RootCAs, one certificate, ServerName = "rabbit" and ExternalAuth = true`, got)
	}
	for _, bad := range []struct {
		tls  TLS
		want string
	}{
		{TLS{CA: "/none.pem"}, "broker.tls.ca: cannot read /none.pem: no such file or directory"},
		{TLS{CA: key}, "broker.tls.ca: " + key + " contains no certificate in PEM format"},
		{TLS{Cert: cert, Key: "/none.pem"}, "broker.tls.key: cannot read /none.pem: no such file or directory"},
		{
			TLS{Cert: key, Key: cert},
			"broker.tls.cert: certificate " + key + " with key " + cert + ": tls: failed to find certificate PEM data in " +
				"certificate input, but did find a private key; PEM inputs may have been switched",
		},
	} {
		c.Broker.TLS = bad.tls
		if _, err := c.Client(nil, nil); errText(err) != bad.want {
			t.Errorf("Client with the TLS settings %+v: got %v, want %s", bad.tls, err, bad.want)
		}
	}
	plain, err := (&Config{Broker: Broker{URL: "amqp://h/"}}).Client(nil, nil)
	if err != nil || plain.GetTLS != nil {
		t.Errorf("Client without TLS files: got the error %v and a TLS configuration: %t; want no error and false, so that amqpx uses its default",
			err, err == nil && plain.GetTLS != nil)
	}
}

// The native strategy is created without asking the broker. It has canary routes, and destinations stay bound to
// previous layouts.
func TestNative(t *testing.T) {
	for yaml, queues := range map[string]int{
		"{strategy: native, native: {queues: 2}}":                       2,
		"{strategy: native, native: {queues: 3}, previous: [{}]}":       3,
		"{strategy: auto, native: {queues: 5}}":                         0,
		"{strategy: bucket, previous: [{strategy: native, queues: 2}]}": 0,
		"{strategy: ttl, ttl: {delays: [1m]}, native: {auto: true}}":    0,
	} {
		s := mustStrategy(t, mustLoad(t, "delay: "+yaml+"\n"))
		var routes []topology.Route
		if c, ok := s.(amqpx.InstantProber); ok {
			_, routes = c.Canary("delay.canary.x")
		}
		if len(routes) != queues {
			t.Errorf("Strategy of %s: got %d canary routes, want %d", yaml, len(routes), queues)
		}
	}
	c := mustLoad(t, "delay: {strategy: bucket, previous: [{strategy: native, queues: 2}]}\ndestinations: [{queue: q}]\n")
	s := mustStrategy(t, c)
	top, err := c.Describe(s)
	if err != nil {
		t.Fatal(err)
	}
	bound := slices.ContainsFunc(top.Bindings, func(b topology.Binding) bool { return b.RoutingKey == "native.*.q" && b.Queue == "q" })
	before, err := c.DescribePrevious(s)
	if _, there := top.Queue("delay.native.1"); !bound || there || err != nil || len(before.Queues) != 2 {
		t.Errorf("destination bound: %t, layout declared: %t, previous queues: %v (%v), want true, false and 2", bound, there, before.Queues, err)
	}
}

// The auto strategy uses native if the configuration allows it and the broker supports delivery times.
func TestAutoProbesForInstants(t *testing.T) {
	for version, want := range map[string]string{"4.3.6": "bucket", "4.4.0": "native"} {
		srv := amqptest.NewServer(amqptest.Options{Version: version})
		t.Cleanup(srv.Close)
		url, err := srv.Listen()
		if err != nil {
			t.Fatalf("RabbitMQ %s: Listen: got %v, want no error", version, err)
		}
		c := mustLoad(t, "broker: {url: '"+url+"'}\ndelay: {strategy: auto, native: {auto: true}, previous: [{layout: hex}]}\n")
		s := mustStrategy(t, c)
		r, err := s.Route(topology.Destination{Queue: "q"}, time.Hour, 0)
		if err != nil || !strings.HasPrefix(r.Queue, "delay."+want+".") {
			t.Errorf("RabbitMQ %s: Route: got %+v, error %v, want a Queue that starts with %q and no error", version, r, err, "delay."+want+".")
		}
		offline, err := c.Offline()
		if err != nil {
			t.Fatalf("RabbitMQ %s: Offline: got %v, want no error", version, err)
		}
		if _, routes := offline.(amqpx.InstantProber).Canary("x"); len(routes) != dlx.DefaultNativeQueues {
			t.Errorf("Offline: got %d canary routes, want %d", len(routes), dlx.DefaultNativeQueues)
		}
	}
}

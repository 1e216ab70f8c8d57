package config

import (
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/internal/serveconf"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

const everything = `
broker:
  url: amqps://user:${RD_TEST_PASSWORD}@rabbit-1:5671/shop
  urls: ["amqps://user:${RD_TEST_PASSWORD}@rabbit-2:5671/shop"]
  management_url: https://rabbit-1:15671
  tls: {ca: ca.pem, cert: client.pem, key: client.key, server_name: rabbit}
  external_auth: true
  connection_name: "shop ${RD_TEST_HOST:-anywhere}"
  heartbeat: 5s
  dial_timeout: 3s
  reconnect_min: 50ms
  reconnect_max: 1m
  send_timeout: 15s
  max_in_flight: 500
  max_body: 1048576
  held_bytes: 2097152
  max_route_queues: 250
  declare: nothing
delay:
  strategy: auto
  prefix: later
  queue_type: classic
  topic_permissions: true
  lead: 150ms
  exact: true
  bucket: {radices: [10, 60, 60], resolution: 100ms}
  ttl: {delays: [60s, 15m, 7d], round_up: true}
  plugin: {min: 1ms, max: 1h}
  native: {queues: 7, auto: true}
  previous:
    - {strategy: native, queues: 9}
    - {layout: clock}
    - {layout: hex, resolution: 10ms}
database:
  url: postgres://shop:${RD_TEST_PASSWORD}@db/shop
serve:
  listen: 0.0.0.0:8443
  users: users.yaml
  path_prefix: /delays
  proxy: {trusted: [10.0.0.0/8, 192.0.2.1], user_header: X-Forwarded-User, role_header: X-Forwarded-Groups, operators: [sre], viewers: [dev, support]}
  title: shop (staging)
  color: "#c62828"
  trace_url: https://traces.example.org/trace/{id}
  discarded: /var/lib/rabbitdelay/discarded
  keep_audit: 30d
  tls: {cert: serve.pem, key: serve.key}
queues:
  - name: ${RD_TEST_QUEUE}
    max_length: ${RD_TEST_LENGTH}
destinations:
  - queue: ${RD_TEST_QUEUE}
schedules:
  - name: nightly
    cron: 30 2 * * mon-fri
    time_zone: Europe/Berlin
    start: 2026-12-01T00:00:00Z
    end: 2027-12-01T00:00:00+01:00
    jitter: 5m
    misfire: all
    misfire_limit: 7
    overlap: allow
    exchange: reports
    routing_key: report.nightly
    body: '{"of": "${RD_TEST_QUEUE}"}'
    content_type: application/json
    type: report
    correlation_id: c
    priority: 3
    expires_after: 2h
    headers: {tenant: blue, number: 7}
    tags: [blue, green]
  - {name: pulse, every: 90s, queue: pulses}
`

// excluded lists the settings that the test file cannot set because of other settings: radices exclude a layout, and a
// client certificate excludes a user and a password.
var excluded = []string{"delay.bucket.layout", "broker.username", "broker.password", "broker.password_file"}

func TestLoadEverything(t *testing.T) {
	t.Setenv("RD_TEST_PASSWORD", "p%40ss")
	t.Setenv("RD_TEST_QUEUE", "orders.expire")
	t.Setenv("RD_TEST_LENGTH", "1000")
	c, err := load([]byte(everything), Source{File: "shop.yaml"})
	if err != nil {
		t.Fatal(err)
	}
	c.origins = nil
	length := int64(1000)
	want := &Config{
		file: "shop.yaml",
		Broker: Broker{
			URL:           "amqps://user:p%40ss@rabbit-1:5671/shop",
			URLs:          []URL{"amqps://user:p%40ss@rabbit-2:5671/shop"},
			ManagementURL: "https://rabbit-1:15671",
			TLS:           TLS{CA: "ca.pem", Cert: "client.pem", Key: "client.key", ServerName: "rabbit"},
			Config: amqpx.Config{
				ExternalAuth: true, ConnectionName: "shop anywhere", Heartbeat: 5 * time.Second, DialTimeout: 3 * time.Second,
				ReconnectMin: 50 * time.Millisecond, ReconnectMax: time.Minute,
				SendTimeout: 15 * time.Second, MaxInFlight: 500, MaxBody: 1 << 20, HeldBytes: 2 << 20, MaxRouteQueues: 250,
				Declare: amqpx.DeclareNothing,
			},
		},
		Delay: Delay{
			Strategy: StrategyAuto, Prefix: "later", QueueType: topology.Classic, TopicPermissions: true, Lead: 150 * time.Millisecond, Exact: true,
			Bucket:   Layout{Radices: []int{10, 60, 60}, Resolution: 100 * time.Millisecond},
			TTL:      TTL{Delays: []time.Duration{time.Minute, 15 * time.Minute, 168 * time.Hour}, RoundUp: true},
			Plugin:   Plugin{Min: time.Millisecond, Max: time.Hour},
			Native:   Native{Queues: 7, Auto: true},
			Previous: []Previous{{Strategy: "native", Queues: 9}, {Layout: "clock"}, {Layout: "hex", Resolution: 10 * time.Millisecond}},
		},
		Database: Database{URL: "postgres://shop:p%40ss@db/shop"},
		serve: serveconf.Settings{
			Listen: "0.0.0.0:8443", Users: "users.yaml", PathPrefix: "/delays",
			Proxy: serveconf.Proxy{
				Trusted: []string{"10.0.0.0/8", "192.0.2.1"}, UserHeader: "X-Forwarded-User",
				RoleHeader: "X-Forwarded-Groups", Operators: []string{"sre"}, Viewers: []string{"dev", "support"},
			},
			Title: "shop (staging)", Color: "#c62828", TraceURL: "https://traces.example.org/trace/{id}",
			Discarded: "/var/lib/rabbitdelay/discarded", KeepAudit: 30 * 24 * time.Hour,
			TLS: serveconf.TLS{Cert: "serve.pem", Key: "serve.key"},
		},
		Topology: topology.Topology{
			Queues:       []topology.Queue{{Name: "orders.expire", MaxLength: &length}},
			Destinations: []topology.Destination{{Queue: "orders.expire"}},
		},
		Schedules: []schedule.Recurring{{
			Name: "nightly", Cron: "30 2 * * mon-fri", TimeZone: "Europe/Berlin", Jitter: 5 * time.Minute,
			Start: time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC), End: time.Date(2027, 11, 30, 23, 0, 0, 0, time.UTC),
			Misfire: schedule.MisfireAll, MisfireLimit: 7, Overlap: schedule.OverlapAllow,
			Task: schedule.Task{
				Exchange: "reports", RoutingKey: "report.nightly", Body: []byte(`{"of": "orders.expire"}`), ContentType: "application/json",
				Type: "report", CorrelationID: "c", Priority: 3, ExpiresAfter: 2 * time.Hour,
				Headers: map[string]string{"tenant": "blue", "number": "7"}, Tags: []string{"blue", "green"},
			},
		}, {Name: "pulse", Every: 90 * time.Second, Task: schedule.Task{Queue: "pulses"}}},
	}
	c.Schedules[0].End = c.Schedules[0].End.UTC()
	if !reflect.DeepEqual(c, want) {
		t.Errorf("the loaded configuration:\ngot  %#v\nwant %#v", c, want)
	}
	for _, s := range settingsOf(c) {
		if reflect.ValueOf(s.field).Elem().IsZero() && !slices.Contains(excluded, s.path) {
			t.Errorf("%s is not set, want everything in this test's file", s.path)
		}
	}
}

func TestLoadDefaults(t *testing.T) {
	c, err := Load(Source{})
	if err != nil {
		t.Fatal(err)
	}
	want := &Config{
		Delay: Delay{Strategy: "bucket", Prefix: "delay", QueueType: topology.Quorum, Previous: []Previous{}},
		serve: serveconf.Settings{Listen: serveconf.DefaultListen, Proxy: serveconf.Proxy{Operators: []string{"operator"}, Viewers: []string{"viewer"}}},
	}
	want.origins = c.origins
	if !reflect.DeepEqual(c, want) {
		t.Errorf("the default configuration: got %#v, want %#v", c, want)
	}
	s, err := c.Strategy(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := s.Topology().Queue("delay.bucket.30m"); !ok || s.Name() != "bucket" {
		t.Errorf("the default strategy is %s (has the queue delay.bucket.30m: %t), want bucket with this queue", s.Name(), ok)
	}
}

// A flag takes precedence over the variable RABBITDELAY_BROKER_URL, then come the file and the variable AMQP_URL.
func TestPrecedence(t *testing.T) {
	file := []byte("broker: {url: amqp://file/}\ndelay: {prefix: file, queue_type: classic}\n")
	check := func(want string, src Source) {
		t.Helper()
		c, err := load(file, src)
		if err != nil {
			t.Fatal(err)
		}
		if got := string(c.Broker.URL); got != want {
			t.Errorf("broker.url is %s, want %s", got, want)
		}
		if c.Delay.Prefix != "file" || c.Delay.QueueType != topology.Classic {
			t.Errorf("the section delay is %+v, want the file's prefix and queue type", c.Delay)
		}
	}
	t.Setenv("AMQP_URL", "amqp://amqp-url/")
	check("amqp://file/", Source{})
	t.Setenv("RABBITDELAY_BROKER_URL", "amqp://environment/")
	check("amqp://environment/", Source{})
	check("amqp://flag/", Source{Overrides: map[string]Override{"broker.url": {"amqp://flag/", "--url"}}})
	file = []byte("delay: {prefix: file, queue_type: classic}\n")
	t.Setenv("RABBITDELAY_BROKER_URL", "")
	check("amqp://amqp-url/", Source{})
	t.Setenv("AMQP_URL", "")
	check("", Source{})
}

// There is no default broker. Every method that needs one returns ErrNoBroker.
func TestNoBroker(t *testing.T) {
	c, err := Load(Source{})
	if err != nil {
		t.Fatal(err)
	}
	_, client := c.Client(nil, nil)
	_, dial := c.Dial(t.Context())
	_, management := c.Management()
	for what, err := range map[string]error{"Client": client, "Dial": dial, "Management": management} {
		if !errors.Is(err, ErrNoBroker) {
			t.Errorf("%s: got %v, want ErrNoBroker", what, err)
		}
	}
}

// By default, the management API is expected on the host of a broker that uses AMQP's default port. If no broker uses
// it, there is no default.
func TestManagementIsBesideTheDefaultPort(t *testing.T) {
	for file, want := range map[string]string{
		"{url: 'amqp://h/'}":                                  "http://h:15672",
		"{url: 'amqps://h/'}":                                 "https://h:15671",
		"{url: 'amqp://h:5673/'}":                             "",
		"{url: 'amqps://h:443/'}":                             "",
		"{urls: ['amqp://h:5673/', 'amqp://i/']}":             "http://i:15672",
		"{url: 'amqp://h:5673/', management_url: 'http://m'}": "http://m",
	} {
		m, err := mustLoad(t, "broker: "+file+"\n").Management()
		switch {
		case want == "" && !errors.Is(err, ErrNoManagement):
			t.Errorf("Management of %s: got %v, want ErrNoManagement", file, err)
		case want != "" && err != nil:
			t.Errorf("Management of %s: got %v, want the endpoint %s", file, err, want)
		case want != "" && live.Internal(m).Endpoint() != want:
			t.Errorf("Management of %s: got the endpoint %s, want %s", file, live.Internal(m).Endpoint(), want)
		}
	}
}

func TestDefaultsLoseAgainstAll(t *testing.T) {
	src := Source{Defaults: map[string]string{"delay.ttl.delays": "1s,2s", "delay.prefix": "default"}}
	c, err := load([]byte("delay: {prefix: file}\n"), src)
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(c.Delay.TTL.Delays, c.Delay.Prefix); got != "[1s 2s]file" {
		t.Errorf("the TTL delays and the prefix are %s, want [1s 2s]file", got)
	}
}

// Every setting can be set with an environment variable.
func TestEnvironment(t *testing.T) {
	given := map[string]string{
		"BROKER_URL": "amqps://a/", "BROKER_URLS": "amqps://b/,amqps://c/", "BROKER_MANAGEMENT_URL": "http://m:1",
		"BROKER_TLS_CA": "ca", "BROKER_TLS_CERT": "cert", "BROKER_TLS_KEY": "key", "BROKER_TLS_SERVER_NAME": "name",
		"BROKER_EXTERNAL_AUTH": "true", "BROKER_CONNECTION_NAME": "c", "BROKER_HEARTBEAT": "2s",
		"BROKER_DIAL_TIMEOUT": "2s", "BROKER_RECONNECT_MIN": "2s", "BROKER_RECONNECT_MAX": "3s",
		"BROKER_SEND_TIMEOUT": "2s", "BROKER_MAX_IN_FLIGHT": "2", "BROKER_MAX_BODY": "2", "BROKER_HELD_BYTES": "2",
		"BROKER_MAX_ROUTE_QUEUES": "2", "BROKER_DECLARE": "missing",
		"DELAY_STRATEGY": "auto", "DELAY_LEAD": "1s", "DELAY_EXACT": "true", "DELAY_PREFIX": "p", "DELAY_QUEUE_TYPE": "classic", "DELAY_TOPIC_PERMISSIONS": "true",
		"DELAY_BUCKET_LAYOUT": "", "DELAY_BUCKET_RADICES": "10, 60", "DELAY_BUCKET_RESOLUTION": "1s",
		"DELAY_TTL_DELAYS": "60s,15m", "DELAY_TTL_ROUND_UP": "true",
		"DELAY_PLUGIN_MIN": "1s", "DELAY_PLUGIN_MAX": "2s", "DELAY_NATIVE_QUEUES": "2", "DELAY_NATIVE_AUTO": "true", "DATABASE_URL": "sqlite:x.db",
		"SERVE_LISTEN": ":1", "SERVE_USERS": "u", "SERVE_PATH_PREFIX": "/p", "SERVE_PROXY_TRUSTED": "::1",
		"SERVE_PROXY_USER_HEADER": "X-User", "SERVE_PROXY_ROLE_HEADER": "X-Role", "SERVE_PROXY_OPERATORS": "o",
		"SERVE_PROXY_VIEWERS": "v,w", "SERVE_KEEP_AUDIT": "1d", "SERVE_TITLE": "t", "SERVE_COLOR": "#000000",
		"SERVE_TRACE_URL": "http://t/{id}", "SERVE_DISCARDED": "d", "SERVE_TLS_CERT": "c", "SERVE_TLS_KEY": "k",
	}
	for name, value := range given {
		t.Setenv("RABBITDELAY_"+name, value)
	}
	c, err := Load(Source{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range settingsOf(c) {
		if reflect.ValueOf(s.field).Elem().IsZero() && !slices.Contains(excluded, s.path) {
			t.Errorf("%s is not set, want the value of the variable %s", s.path, variable(s.path))
		}
	}
	if got := fmt.Sprint(c.Delay.TTL.Delays, c.Delay.Bucket.Radices, len(c.Broker.URLs)); got != "[1m0s 15m0s] [10 60] 2" {
		t.Errorf("the lists are %s, want [1m0s 15m0s] [10 60] 2", got)
	}
}

func TestVariablesOfOverriddenValuesMayBeUnset(t *testing.T) {
	file := []byte("broker: {url: '${RD_TEST_UNSET}'}\n")
	if _, err := load(file, Source{}); err == nil {
		t.Error("load of a file with an unset variable: got no error, want one")
	}
	if _, err := load(file, Source{Overrides: map[string]Override{"broker.url": {"amqp://x/", "--url"}}}); err != nil {
		t.Errorf("load with an override: got %v, want no error", err)
	}
}

func TestExpand(t *testing.T) {
	t.Setenv("RD_TEST_A", "one")
	t.Setenv("RD_TEST_EMPTY", "")
	t.Setenv("RD_TEST_NESTED", "${RD_TEST_A}")
	for _, c := range []struct{ in, want, err string }{
		{"plain $ {x} $RD_TEST_A", "plain $ {x} $RD_TEST_A", ""},
		{"${RD_TEST_A}", "one", ""},
		{"<${RD_TEST_A}${RD_TEST_A}>", "<oneone>", ""},
		{"${RD_TEST_EMPTY}", "", ""},
		{"${RD_TEST_EMPTY:-two}", "two", ""},
		{"${RD_TEST_UNSET:-}", "", ""},
		{"${RD_TEST_UNSET:-a:-b}", "a:-b", ""},
		{"${RD_TEST_NESTED}", "${RD_TEST_A}", ""},
		{"$${RD_TEST_A}", "${RD_TEST_A}", ""},
		{"${RD_TEST_UNSET}", "", "the environment variable RD_TEST_UNSET is not set; set it, or write ${RD_TEST_UNSET:-value}"},
		{"${RD_TEST_A", "", errExpansion.Error()},
		{"${}", "", errExpansion.Error()},
		{"${RD TEST}", "", errExpansion.Error()},
		{"${1A}", "", errExpansion.Error()},
	} {
		got, err := expand(c.in)
		if text := errText(err); got != c.want || text != c.err {
			t.Errorf("expand(%q) = %q, %q, want %q, %q", c.in, got, text, c.want, c.err)
		}
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// The content of a variable remains a single value.
func TestExpansionCannotInject(t *testing.T) {
	t.Setenv("RD_TEST_EVIL", "x\n  url: amqp://evil/\nqueues: [{name: evil}]\n#")
	c, err := load([]byte("broker:\n  connection_name: ${RD_TEST_EVIL}\n"), Source{})
	if err != nil {
		t.Fatal(err)
	}
	if c.Broker.URL != "" || len(c.Topology.Queues) != 0 || c.Broker.ConnectionName != os.Getenv("RD_TEST_EVIL") {
		t.Errorf(`load with a variable that contains YAML: got %#v, want Broker.URL = "", no queues and Broker.ConnectionName = %q`, c, os.Getenv("RD_TEST_EVIL"))
	}
	t.Setenv("RD_TEST_EVIL", "{name: evil, max_length: 1}")
	c, err = load([]byte("queues:\n  - name: ${RD_TEST_EVIL}\n"), Source{})
	if err != nil || c.Topology.Queues[0].Name != "{name: evil, max_length: 1}" {
		t.Errorf(`load with a variable that contains YAML: got %+v, %v, want no error and a queue with the name "{name: evil, max_length: 1}"`, c, err)
	}
	// A quoted value remains text, and an unquoted value is parsed.
	t.Setenv("RD_TEST_EVIL", "12")
	if _, err = load([]byte("queues:\n  - name: '${RD_TEST_EVIL}'\n"), Source{}); err != nil {
		t.Errorf("load with a quoted number as a name: got %v, want no error", err)
	}
	if _, err = load([]byte("queues:\n  - name: ${RD_TEST_EVIL}\n"), Source{}); err == nil {
		t.Error("load with an unquoted number as a name: got no error, want one")
	}
}

func TestAliases(t *testing.T) {
	t.Setenv("RD_TEST_A", "$${x}")
	c, err := load([]byte("broker: {connection_name: &n '${RD_TEST_A}'}\nqueues: [{name: *n}, {name: b}]\ndelay: {prefix: *n}\n"), Source{})
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Broker.ConnectionName + c.Topology.Queues[0].Name + c.Delay.Prefix; got != strings.Repeat("$${x}", 3) {
		t.Errorf("the concatenated names: got %s, want $${x} three times", got)
	}
}

func TestFileErrors(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "none.yaml")
	_, err := Load(Source{File: missing})
	if want := missing + ": cannot be read: no such file or directory"; errText(err) != want || !errors.Is(err, ErrConfig) {
		t.Errorf("Load of a missing file: got %v, want %s", err, want)
	}
	file := filepath.Join(t.TempDir(), "a.yaml")
	if err := os.WriteFile(file, []byte("delay: {strategy: fast}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = Load(Source{File: file})
	if want := file + `: line 1, column 19: delay.strategy: "fast"; expected auto, bucket, ttl, plugin or native`; errText(err) != want {
		t.Errorf("Load of a file with an unknown strategy: got %v, want %s", err, want)
	}
}

// A part that several values share can be written once, under a key that starts with x-, and merged into other
// mappings.
func TestMergeKeys(t *testing.T) {
	c, err := load([]byte(`
x-common:
  retry: &patient {max_attempts: 20, backoff: 10s}
  destination: &mail
    dead_letter: mail.dead
    retry: {<<: *patient, backoff: 1s}
  late: &late {lead: 2s, dead_letter: late.dead}
destinations:
- {<<: *mail, queue: text}
- {queue: mail, <<: [*late, *mail], dead_letter: own.dead}
`), Source{})
	if err != nil {
		t.Fatal(err)
	}
	retry := &topology.Retry{MaxAttempts: 20, Backoff: time.Second}
	lead := 2 * time.Second
	want := []topology.Destination{
		{Queue: "text", DeadLetter: "mail.dead", Retry: retry},
		{Queue: "mail", DeadLetter: "own.dead", Retry: retry, Lead: &lead},
	}
	if !reflect.DeepEqual(c.Topology.Destinations, want) {
		t.Errorf("load with merge keys: got the destinations %+v, want %+v", c.Topology.Destinations, want)
	}
}

// Keys that start with x- are ignored in nested mappings too, and in mappings that are merged into others. Names that
// the user chooses and arguments of queues are kept.
func TestExtensionKeys(t *testing.T) {
	c, err := load([]byte(`
broker: {x-team: [a, b], max_in_flight: 7}
delay: {x-why: '${RD_TEST_UNSET}', bucket: {layout: hex, x-why: 1}}
queues:
- {name: q, arguments: {x-max-priority: 5, x-own: 1}, type: classic}
destinations:
- &first {queue: first, x-note: "keep", retry: {max_attempts: 3, x-note: {}}}
- {<<: *first, queue: second}
schedules:
- {name: s, every: 1m, queue: first, body: b, headers: {x-tenant: shop}, x-owner: me}
`), Source{})
	if err != nil {
		t.Fatal(err)
	}
	retry := &topology.Retry{MaxAttempts: 3}
	want := []topology.Destination{{Queue: "first", Retry: retry}, {Queue: "second", Retry: retry}}
	if !reflect.DeepEqual(c.Topology.Destinations, want) {
		t.Errorf("load with x- keys: got the destinations %+v, want %+v", c.Topology.Destinations, want)
	}
	if got := c.Broker.MaxInFlight; got != 7 {
		t.Errorf("load with an x- key in broker: got max_in_flight %d, want 7", got)
	}
	if got, want := c.Topology.Queues[0].Arguments, map[string]any{"x-max-priority": int64(5), "x-own": int64(1)}; !reflect.DeepEqual(got, want) {
		t.Errorf("load of a queue: got the arguments %v, want %v", got, want)
	}
	if got, want := c.Schedules[0].Task.Headers, map[string]string{"x-tenant": "shop"}; !reflect.DeepEqual(got, want) {
		t.Errorf("load of a schedule: got the headers %v, want %v", got, want)
	}
}

// The management API may have a certificate from a private authority even if AMQP is not encrypted.
func TestPrivateAuthorityOfTheManagementAPI(t *testing.T) {
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("[]")) }))
	defer srv.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, works := range map[string]bool{"tls: {ca: " + ca + "}, ": true, "": false} {
		c, err := load(fmt.Appendf(nil, "broker: {%surl: 'amqp://a:b@broker/', management_url: %q}\n", name, srv.URL), Source{})
		if err != nil {
			t.Fatalf("a file with %q: got %v, want no error", name, err)
		}
		m, err := c.Management()
		if err != nil {
			t.Fatalf("a file with %q: got %v, want no error", name, err)
		}
		if _, err = live.Internal(m).Queues(t.Context()); (err == nil) != works {
			t.Errorf("a request with the settings %q: got %v, want an error: %t", name, err, !works)
		}
	}
}

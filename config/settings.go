package config

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/plugin"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// setting is one value that the file, the environment or a flag can give. Its row is all that
// is said of it: reading, checking, the schema, the environment and the documents use it.
type setting struct {
	path  string
	field func(*Config) any // pointer to the value
	help  string
	def   string // the default in words; if empty, that of the field
	// bounds are checked, if they are min and max of a duration or one of several texts.
	// What amqpx and dlx bound is checked, and described, by them.
	bounds bounds
}

type bounds struct {
	min, max time.Duration
	oneOf    []string
}

func (b bounds) String() string {
	switch n := len(b.oneOf); {
	case n > 0:
		return strings.Join(b.oneOf[:n-1], ", ") + " or " + b.oneOf[n-1]
	case b.max > 0:
		return topology.FormatDuration(b.min) + " to " + topology.FormatDuration(b.max)
	}
	return ""
}

// maxKeep is the longest time for which an audit can be kept.
const maxKeep = 3650 * 24 * time.Hour

var (
	queueTypes = []string{string(topology.Quorum), string(topology.Classic)}
	strategies = []string{StrategyAuto, StrategyBucket, StrategyTTL, StrategyPlugin, StrategyNative}
)

var settings = []setting{
	{path: "broker.url", field: func(c *Config) any { return &c.Broker.URL }, def: "AMQP_URL",
		help: "the broker, amqp://user:password@host:5672/vhost or amqps://, special characters percent-encoded"},
	{path: "broker.urls", field: func(c *Config) any { return &c.Broker.URLs }, def: "none",
		help: "nodes of the same cluster, beside url or instead of it, tried in a random order"},
	{path: "broker.username", field: func(c *Config) any { return &c.Broker.Username }, def: "that of the URL",
		help: "user, instead of the URL's; as it is, not percent-encoded"},
	{path: "broker.password", field: func(c *Config) any { return &c.Broker.Password }, def: "that of the URL",
		help: "password, instead of the URL's; as it is, not percent-encoded"},
	{path: "broker.password_file", field: func(c *Config) any { return &c.Broker.PasswordFile }, def: "none",
		help: "file with the password, read again for each connection"},
	{path: "broker.management_url", field: func(c *Config) any { return &c.Broker.ManagementURL },
		def:  "beside a broker at port 5672 (amqps: 5671) port 15672 (15671) of its host, with its user",
		help: "the management API, http://user:password@host:15672 or https://"},
	{path: "broker.tls.ca", field: func(c *Config) any { return &c.Broker.TLS.CA }, def: "the system's certificates",
		help: "PEM file of trusted certificates, for amqps; TLS files are read again at each handshake"},
	{path: "broker.tls.cert", field: func(c *Config) any { return &c.Broker.TLS.Cert }, def: "none", help: "PEM file of the client certificate"},
	{path: "broker.tls.key", field: func(c *Config) any { return &c.Broker.TLS.Key }, def: "none", help: "PEM file of its private key"},
	{path: "broker.tls.server_name", field: func(c *Config) any { return &c.Broker.TLS.ServerName }, def: "the host of the URL",
		help: "name that the broker's certificate must have"},
	{path: "broker.external_auth", field: func(c *Config) any { return &c.Broker.ExternalAuth },
		help: "log in by the client certificate instead of user and password"},
	{path: "broker.connection_name", field: func(c *Config) any { return &c.Broker.ConnectionName },
		help: "name of the connections in the broker's management, up to 200 bytes"},
	{path: "broker.heartbeat", field: func(c *Config) any { return &c.Broker.Heartbeat }, help: "interval of heartbeats"},
	{path: "broker.dial_timeout", field: func(c *Config) any { return &c.Broker.DialTimeout },
		help: "time limit for the TCP, TLS and AMQP handshakes together"},
	{path: "broker.reconnect_min", field: func(c *Config) any { return &c.Broker.ReconnectMin }, help: "first pause between attempts to connect"},
	{path: "broker.reconnect_max", field: func(c *Config) any { return &c.Broker.ReconnectMax },
		help: "longest pause between attempts to connect, at least reconnect_min"},
	{path: "broker.send_timeout", field: func(c *Config) any { return &c.Broker.SendTimeout },
		help: "how long a send without a deadline of its own may take"},
	{path: "broker.max_in_flight", field: func(c *Config) any { return &c.Broker.MaxInFlight }, help: "messages that may await their confirm"},
	{path: "broker.max_body", field: func(c *Config) any { return &c.Broker.MaxBody }, help: "largest body in bytes"},
	{path: "broker.declare", field: func(c *Config) any { return &c.Broker.Declare },
		help: "what may be created: missing (whatever is used), listed (the layout, and of destinations those of the file), nothing"},
	{path: "broker.max_route_queues", field: func(c *Config) any { return &c.Broker.MaxRouteQueues },
		help: "route queues that a client may make, one for each routing key of an exchange destination"},
	{path: "delay.strategy", field: func(c *Config) any { return &c.Delay.Strategy }, bounds: bounds{oneOf: strategies},
		help: "bucket (any delay), ttl (declared delays), plugin (x-delayed-message), native (by an instant, RabbitMQ 4.4), auto (by the delay)"},
	{path: "delay.prefix", field: func(c *Config) any { return &c.Delay.Prefix },
		help: "beginning of the names of all delay objects, 1 to 64 bytes"},
	{path: "delay.queue_type", field: func(c *Config) any { return &c.Delay.QueueType }, bounds: bounds{oneOf: queueTypes},
		help: "type of delay queues, and of destination queues not under queues"},
	{path: "delay.topic_permissions", field: func(c *Config) any { return &c.Delay.TopicPermissions },
		help: "let the broker check topic permissions for each message"},
	{path: "delay.lead", field: func(c *Config) any { return &c.Delay.Lead }, def: "0s; with exact 400ms", bounds: bounds{max: topology.MaxLead},
		help: "how long before its instant a message reaches its consumer, which holds it until then; a destination's own lead takes precedence"},
	{path: "delay.exact", field: func(c *Config) any { return &c.Delay.Exact },
		help: "handle messages at their instant to the millisecond: a lead of 400ms and, of bucket, a resolution of 100ms; every consumer must hold messages"},
	{path: "delay.bucket.layout", field: func(c *Config) any { return &c.Delay.Bucket.Layout },
		help: "number system of the bucket strategy: clock, hex or binary; or the queues of nservicebus or celery"},
	{path: "delay.bucket.radices", field: func(c *Config) any { return &c.Delay.Bucket.Radices }, def: "none",
		help: "a layout of one's own instead: radices, lowest position first"},
	{path: "delay.bucket.resolution", field: func(c *Config) any { return &c.Delay.Bucket.Resolution }, def: "10ms; hex, radices and exact: 100ms; binary: 1s",
		help: "step of the bucket strategy's delays, 10ms to 1h"},
	{path: "delay.ttl.delays", field: func(c *Config) any { return &c.Delay.TTL.Delays }, def: "none",
		help: "the delays of the ttl strategy, 1ms to ten years"},
	{path: "delay.ttl.round_up", field: func(c *Config) any { return &c.Delay.TTL.RoundUp },
		help: "send a delay that is not declared with the next longer one"},
	{path: "delay.plugin.min", field: func(c *Config) any { return &c.Delay.Plugin.Min }, bounds: bounds{max: plugin.MaxDelay},
		help: "shortest delay for which auto takes the plugin"},
	{path: "delay.plugin.max", field: func(c *Config) any { return &c.Delay.Plugin.Max }, bounds: bounds{min: time.Millisecond, max: plugin.MaxDelay},
		help: "longest delay of the plugin; with min or max, auto takes the plugin between them"},
	{path: "delay.native.queues", field: func(c *Config) any { return &c.Delay.Native.Queues },
		help: "holding queues of the native strategy, which are quorum queues"},
	{path: "delay.native.auto", field: func(c *Config) any { return &c.Delay.Native.Auto },
		help: "let auto take native instead of bucket, where the broker delays by an instant"},
	{path: "database.url", field: func(c *Config) any { return &c.Database.URL }, def: "none",
		help: "database of tasks and idempotency: postgres://, mysql:// or sqlite:path"},
	{path: "serve.listen", field: func(c *Config) any { return &c.Serve.Listen },
		help: "where rabbitdelay serve answers, HOST:PORT; an address that others reach needs serve.users"},
	{path: "serve.users", field: func(c *Config) any { return &c.Serve.Users }, def: "none",
		help: "file of users and tokens, which rabbitdelay users writes"},
	{path: "serve.path_prefix", field: func(c *Config) any { return &c.Serve.PathPrefix }, def: "none",
		help: "what comes before all paths, such as /rabbitdelay, behind a proxy"},
	{path: "serve.trusted_proxy", field: func(c *Config) any { return &c.Serve.TrustedProxy }, def: "none",
		help: "address or network, such as 10.0.0.0/8, of proxies whose X-Forwarded-For says who fails to log in"},
	{path: "serve.title", field: func(c *Config) any { return &c.Serve.Title }, def: "rabbitdelay",
		help: "what stands at the top of every page, to tell two installations apart, such as shop (staging)"},
	{path: "serve.color", field: func(c *Config) any { return &c.Serve.Color }, def: "none",
		help: "colour of a line above all pages, such as #c62828 for production"},
	{path: "serve.trace_url", field: func(c *Config) any { return &c.Serve.TraceURL }, def: "none",
		help: "link to a task's trace, with {id} for the trace's id, such as https://traces.example.org/trace/{id}"},
	{path: "serve.discarded", field: func(c *Config) any { return &c.Serve.Discarded }, def: "none",
		help: "directory in which the console and the API keep the messages that they discard; without it they discard none"},
	{path: "serve.keep_audit", field: func(c *Config) any { return &c.Serve.KeepAudit }, def: "90d", bounds: bounds{min: time.Hour, max: maxKeep},
		help: "how long the audit and the jobs are kept"},
	{path: "serve.tls.cert", field: func(c *Config) any { return &c.Serve.TLS.Cert }, def: "none",
		help: "PEM file of the certificate chain, for https"},
	{path: "serve.tls.key", field: func(c *Config) any { return &c.Serve.TLS.Key }, def: "none", help: "PEM file of its private key"},
}

// defaults returns a Config with the defaults of all settings that have a value.
func defaults() *Config {
	c := &Config{Broker: Broker{Config: amqpx.Config{}.WithDefaults()}}
	c.setDefaults()
	c.Delay.Bucket.Layout, c.Delay.Plugin.Max, c.Delay.Native.Queues = dlx.LayoutClock, plugin.MaxDelay, dlx.DefaultNativeQueues
	return c
}

// byDefault returns the default as text.
func (s setting) byDefault() string {
	v := reflect.ValueOf(s.field(defaults())).Elem().Interface()
	if d, ok := v.(time.Duration); ok {
		return cmp.Or(s.def, topology.FormatDuration(d))
	}
	return cmp.Or(s.def, fmt.Sprint(v))
}

// meaning returns the help with the bounds, which amqpx and dlx name for a value that is out
// of them.
func (s setting) meaning() string {
	limits := s.bounds.String()
	if len(s.bounds.oneOf) > 0 && strings.Contains(s.help, s.bounds.oneOf[0]) {
		limits = "" // explained
	}
	c := &Config{Broker: Broker{Config: amqpx.Config{}.WithDefaults()}}
	if v := reflect.ValueOf(s.field(c)).Elem(); v.CanInt() && limits == "" {
		v.SetInt(-1)
		key := s.path[strings.LastIndexByte(s.path, '.')+1:]
		for _, err := range unjoined(errors.Join(c.Broker.Config.Validate(), dlx.NativeConfig{Queues: c.Delay.Native.Queues}.Validate())) {
			if f, ok := errors.AsType[*topology.FieldError](err); ok && snake(f.Field) == key {
				limits = f.Want
			}
		}
	}
	switch {
	case limits == "":
		return s.help
	case len(s.bounds.oneOf) > 0:
		return s.help + ": " + limits
	}
	return s.help + ", " + limits
}

// previousPath is a list of mappings, which only the file can give.
const previousPath = "delay.previous"

// previousSettings are the settings of one item, at path.
func previousSettings(path string, l *Previous) []setting {
	var list []setting
	for key, field := range map[string]any{
		"strategy": &l.Strategy, "queue_type": &l.QueueType, "delays": &l.Delays, "queues": &l.Queues, "layout": &l.Layout, "radices": &l.Radices, "resolution": &l.Resolution,
	} {
		list = append(list, setting{path: path + "." + key, field: func(*Config) any { return field }})
	}
	slices.SortFunc(list, func(a, b setting) int { return strings.Compare(a.path, b.path) })
	return list
}

// variable returns the environment variable of a setting.
func variable(path string) string {
	return envPrefix + "_" + strings.ToUpper(strings.ReplaceAll(path, ".", "_"))
}

const envPrefix = "RABBITDELAY"

// Setting describes one setting to people.
type Setting struct {
	Path     string `json:"path"` // in YAML
	Type     string `json:"type"`
	Default  string `json:"default"`
	Variable string `json:"variable"` // of the environment; empty if only the file can give it
	Meaning  string `json:"meaning"`  // with its bounds
}

// Settings returns all settings.
func Settings() []Setting {
	var list []Setting
	for _, s := range settings {
		list = append(list, Setting{s.path, typeOf(s.field(&Config{})), s.byDefault(), variable(s.path), s.meaning()})
	}
	return append(list, Setting{
		Path: previousPath, Type: "list of layouts", Default: "none",
		Meaning: "what delay: was before, each with strategy (default bucket), queue_type (default delay.queue_type), and layout, radices and resolution of bucket, delays of ttl, or queues of native; destinations stay bound to them until rabbitdelay retire has deleted them",
	})
}

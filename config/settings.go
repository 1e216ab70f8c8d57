package config

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/yamldoc"
)

// setting is one value that the file, the environment or a flag may give.
type setting struct {
	path  string
	field func(*Config) any // pointer to where it goes
	byDef string            // its default, in words where there is no value
	usage string
}

var settings = []setting{
	{"broker.url", func(c *Config) any { return &c.Broker.URL },
		"AMQP_URL", "the broker, amqp://user:password@host:5672/vhost or amqps://, special characters percent-encoded"},
	{"broker.urls", func(c *Config) any { return &c.Broker.URLs },
		"none", "nodes of the same cluster, beside url or instead of it, tried in a random order"},
	{"broker.username", func(c *Config) any { return &c.Broker.Username },
		"that of the URL", "user, instead of the URL's; as it is, not percent-encoded"},
	{"broker.password", func(c *Config) any { return &c.Broker.Password },
		"that of the URL", "password, instead of the URL's; as it is, not percent-encoded"},
	{"broker.password_file", func(c *Config) any { return &c.Broker.PasswordFile },
		"none", "file that has the password, read again at each connection"},
	{"broker.management_url", func(c *Config) any { return &c.Broker.ManagementURL },
		"beside a broker at port 5672 (amqps: 5671) port 15672 (15671) of its host, with its user", "the management API, http://user:password@host:15672 or https://"},
	{"broker.tls.ca", func(c *Config) any { return &c.Broker.TLS.CA },
		"the system's certificates", "PEM file of certificates to trust, for amqps; TLS files are read again at each handshake"},
	{"broker.tls.cert", func(c *Config) any { return &c.Broker.TLS.Cert },
		"none", "PEM file of the client certificate"},
	{"broker.tls.key", func(c *Config) any { return &c.Broker.TLS.Key },
		"none", "PEM file of its private key"},
	{"broker.tls.server_name", func(c *Config) any { return &c.Broker.TLS.ServerName },
		"the host of the URL", "name that the broker's certificate must have"},
	{"broker.external_auth", func(c *Config) any { return &c.Broker.ExternalAuth },
		"false", "log in by the client certificate instead of user and password"},
	{"broker.connection_name", func(c *Config) any { return &c.Broker.ConnectionName },
		"rabbitdelay", "name of the connections in the broker's management, up to 200 bytes"},
	{"broker.heartbeat", func(c *Config) any { return &c.Broker.Heartbeat },
		"10s", "interval of heartbeats, 1s to 65535s"},
	{"broker.dial_timeout", func(c *Config) any { return &c.Broker.DialTimeout },
		"10s", "bound of the TCP, TLS and AMQP handshakes together, 10ms to 1h"},
	{"broker.reconnect_min", func(c *Config) any { return &c.Broker.ReconnectMin },
		"100ms", "first pause between attempts to connect, 1ms to 1h"},
	{"broker.reconnect_max", func(c *Config) any { return &c.Broker.ReconnectMax },
		"10s", "longest pause between attempts to connect, reconnect_min to 1d"},
	{"broker.send_timeout", func(c *Config) any { return &c.Broker.SendTimeout },
		"30s", "how long a send without a deadline of its own may take, 1ms to 1d"},
	{"broker.max_in_flight", func(c *Config) any { return &c.Broker.MaxInFlight },
		"1024", "messages that may await their confirm, 1 to 1048576"},
	{"broker.max_body", func(c *Config) any { return &c.Broker.MaxBody },
		"16777216", "largest body in bytes, 1 to 536870912"},
	{"broker.declare", func(c *Config) any { return &c.Broker.Declare },
		"missing", "what may be created: missing (whatever is used), listed (the layout, and of destinations those of the file), nothing"},
	{"broker.max_route_queues", func(c *Config) any { return &c.Broker.MaxRouteQueues },
		"100", "route queues that a client may make, one for each routing key of an exchange destination, 1 to 100000"},
	{"delay.strategy", func(c *Config) any { return &c.Delay.Strategy },
		"bucket", "bucket (any delay), ttl (declared delays), plugin (x-delayed-message), native (by an instant, RabbitMQ 4.4), auto (by the delay)"},
	{"delay.prefix", func(c *Config) any { return &c.Delay.Prefix },
		"delay", "beginning of the names of all delay objects, 1 to 64 bytes"},
	{"delay.queue_type", func(c *Config) any { return &c.Delay.QueueType },
		"quorum", "type of delay queues, and of destination queues not under queues: quorum or classic"},
	{"delay.topic_permissions", func(c *Config) any { return &c.Delay.TopicPermissions },
		"false", "let the broker check topic permissions for each message"},
	{"delay.bucket.layout", func(c *Config) any { return &c.Delay.Bucket.Layout },
		"clock", "number system of the bucket strategy: clock, hex or binary; or the queues of nservicebus or celery"},
	{"delay.bucket.radices", func(c *Config) any { return &c.Delay.Bucket.Radices },
		"none", "a layout of one's own instead: radices, lowest position first"},
	{"delay.bucket.resolution", func(c *Config) any { return &c.Delay.Bucket.Resolution },
		"10ms; hex and radices: 100ms; binary: 1s", "step of the bucket strategy's delays, 10ms to 1h"},
	{"delay.ttl.delays", func(c *Config) any { return &c.Delay.TTL.Delays },
		"none", "the delays of the ttl strategy, 1ms to ten years"},
	{"delay.ttl.round_up", func(c *Config) any { return &c.Delay.TTL.RoundUp },
		"false", "send a delay that is not declared with the next longer one"},
	{"delay.plugin.min", func(c *Config) any { return &c.Delay.Plugin.Min },
		"0s", "shortest delay for which auto takes the plugin"},
	{"delay.plugin.max", func(c *Config) any { return &c.Delay.Plugin.Max },
		"49d17h2m47.295s", "longest delay of the plugin; with min or max, auto takes the plugin between them"},
	{"delay.native.queues", func(c *Config) any { return &c.Delay.Native.Queues },
		"4", "holding queues of the native strategy, which are quorum queues, 1 to 64"},
	{"delay.native.auto", func(c *Config) any { return &c.Delay.Native.Auto },
		"false", "let auto take native instead of bucket, where the broker delays by an instant"},
	{"database.url", func(c *Config) any { return &c.Database.URL },
		"none", "database of tasks and idempotency: postgres://, mysql:// or sqlite:path"},
	{"serve.listen", func(c *Config) any { return &c.Serve.Listen },
		DefaultListen, "where rabbitdelay serve answers, HOST:PORT; an address that others reach needs serve.users"},
	{"serve.users", func(c *Config) any { return &c.Serve.Users },
		"none", "file of users and tokens, which rabbitdelay users writes"},
	{"serve.path_prefix", func(c *Config) any { return &c.Serve.PathPrefix },
		"none", "what stands before all paths, such as /rabbitdelay, behind a proxy"},
	{"serve.trusted_proxy", func(c *Config) any { return &c.Serve.TrustedProxy },
		"none", "address or network, such as 10.0.0.0/8, of proxies whose X-Forwarded-For tells who fails to log in"},
	{"serve.keep_audit", func(c *Config) any { return &c.Serve.KeepAudit },
		"90d", "how long the audit and the jobs are kept, 1h to 3650d"},
	{"serve.tls.cert", func(c *Config) any { return &c.Serve.TLS.Cert },
		"none", "PEM file of the certificate chain, for https"},
	{"serve.tls.key", func(c *Config) any { return &c.Serve.TLS.Key },
		"none", "PEM file of its private key"},
}

// previousPath is the list of mappings that only the file can give.
const previousPath = "delay.previous"

// previousSettings are the settings of one item, at path.
func previousSettings(path string, l *Previous) []setting {
	return []setting{
		{path: path + ".strategy", field: func(*Config) any { return &l.Strategy }},
		{path: path + ".queue_type", field: func(*Config) any { return &l.QueueType }},
		{path: path + ".delays", field: func(*Config) any { return &l.Delays }},
		{path: path + ".queues", field: func(*Config) any { return &l.Queues }},
		{path: path + ".layout", field: func(*Config) any { return &l.Layout }},
		{path: path + ".radices", field: func(*Config) any { return &l.Radices }},
		{path: path + ".resolution", field: func(*Config) any { return &l.Resolution }},
	}
}

// variable is the environment variable of a setting.
func variable(path string) string {
	return envPrefix + "_" + strings.ToUpper(strings.ReplaceAll(path, ".", "_"))
}

const envPrefix = "RABBITDELAY"

// Setting describes one setting to people.
type Setting struct {
	Path     string `json:"path"` // in YAML
	Type     string `json:"type"`
	Default  string `json:"default"`
	Variable string `json:"variable"` // of the environment; empty where only the file has it
	Meaning  string `json:"meaning"`
}

// Settings lists all settings there are.
func Settings() []Setting {
	var list []Setting
	for _, s := range settings {
		list = append(list, Setting{s.path, typeOf(s.field(&Config{})), s.byDef, variable(s.path), s.usage})
	}
	return append(list, Setting{
		Path: previousPath, Type: "list of layouts", Default: "none",
		Meaning: "what delay: was before, each with strategy (default bucket), queue_type (default delay.queue_type), and layout, radices and resolution of bucket, delays of ttl, or queues of native; destinations stay bound to them until rabbitdelay retire has deleted them",
	})
}

func typeOf(field any) string {
	switch field.(type) {
	case *URL:
		return "URL"
	case *[]URL:
		return "list of URLs"
	case *[]int:
		return "list of integers"
	case *[]time.Duration:
		return "list of durations"
	case *bool:
		return "true or false"
	case *int:
		return "integer"
	case *time.Duration:
		return "duration"
	}
	return "text"
}

// isList tells whether a setting takes several values.
func isList(field any) bool {
	switch field.(type) {
	case *[]URL, *[]int, *[]time.Duration:
		return true
	}
	return false
}

// errEmpty says of a value that it was given and is nothing, most often because
// a variable in it is not set: its default would be a surprise.
var errEmpty = errors.New("is empty; give a value, or leave it out for the default")

// assign reads the text of a setting into its field. It refuses a single value
// that is empty and was given. Its errors never contain the text of a URL.
func assign(field any, texts []string, given bool) error {
	switch f := field.(type) {
	case *[]URL:
		return assignList(f, texts, func(s string) (URL, error) { return URL(s), nil })
	case *[]int:
		return assignList(f, texts, parseInt)
	case *[]time.Duration:
		return assignList(f, texts, topology.ParseDuration)
	}
	if len(texts) != 1 {
		return fmt.Errorf("expected one value, got %d", len(texts))
	}
	text := texts[0]
	if given && text == "" {
		return errEmpty
	}
	var err error
	switch f := field.(type) {
	case *string:
		*f = text
	case *URL:
		*f = URL(text)
	case *Secret:
		*f = Secret(text)
	case *topology.QueueType:
		*f = topology.QueueType(text)
	case *amqpx.Declaration:
		*f = amqpx.Declaration(text)
	case *bool:
		*f, err = parseBool(text)
	case *int:
		*f, err = parseInt(text)
	case *time.Duration:
		*f, err = topology.ParseDuration(text)
	default:
		panic(fmt.Sprintf("config: no reader for %T", field))
	}
	return err
}

func assignList[T any](dst *[]T, texts []string, parse func(string) (T, error)) error {
	list := make([]T, len(texts))
	var wrong []string
	for i, s := range texts {
		var err error
		if list[i], err = parse(strings.TrimSpace(s)); err != nil {
			wrong = append(wrong, fmt.Sprintf("item %d: %v", i+1, err))
		}
	}
	*dst = list
	if len(wrong) > 0 {
		return errors.New(strings.Join(wrong, "; "))
	}
	return nil
}

func parseInt(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil {
		return 0, fmt.Errorf("expected an integer, got %q", yamldoc.Clip(s))
	}
	return n, nil
}

func parseBool(s string) (bool, error) {
	switch s {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	return false, fmt.Errorf("expected true or false, got %q", yamldoc.Clip(s))
}

package config

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/internal/yamldoc"
	"github.com/rabbitdelay/rabbitdelay/plugin"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// setting describes a value that the file, the environment or a flag can set. The description is used for reading,
// checking, the schema, the environment variables and the documentation.
type setting struct {
	path  string
	field any    // pointer to the value
	def   string // the default in words; if empty, the field's default value
	help  string
	// bounds limits the value to a range of durations or to one of several strings. Limits that amqpx and dlx define
	// are checked and described by those packages.
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

var (
	queueTypes = []string{string(topology.Quorum), string(topology.Classic)}
	strategies = []string{StrategyAuto, StrategyBucket, StrategyTTL, StrategyPlugin, StrategyNative}
)

// settings lists all settings, with the default values of the fields that have one.
var settings = settingsOf(defaults())

// settingsOf returns all settings, with pointers to the fields of c.
func settingsOf(c *Config) []setting {
	row := func(path string, field any, def, help string, limits ...bounds) setting {
		s := setting{path: path, field: field, def: def, help: help}
		for _, b := range limits {
			s.bounds = b
		}
		return s
	}
	return []setting{
		row("broker.url", &c.Broker.URL, "AMQP_URL",
			"the broker, amqp://user:password@host:5672/vhost or amqps://, special characters percent-encoded"),
		row("broker.urls", &c.Broker.URLs, "none", "nodes of the same cluster, in addition to url or instead of it; tried in random order"),
		row("broker.username", &c.Broker.Username, "the one in the URL", "user, instead of the one in the URL; not percent-encoded"),
		row("broker.password", &c.Broker.Password, "the one in the URL", "password, instead of the one in the URL; not percent-encoded"),
		row("broker.password_file", &c.Broker.PasswordFile, "none", "file with the password, read again for each connection"),
		row("broker.management_url", &c.Broker.ManagementURL, "port 15672 (15671) on the host of a broker at port 5672 (amqps: 5671), with the broker's user",
			"the management API, http://user:password@host:15672 or https://"),
		row("broker.tls.ca", &c.Broker.TLS.CA, "the system's certificates",
			"PEM file of trusted certificates, for amqps; TLS files are read again at each handshake"),
		row("broker.tls.cert", &c.Broker.TLS.Cert, "none", "PEM file of the client certificate"),
		row("broker.tls.key", &c.Broker.TLS.Key, "none", "PEM file of its private key"),
		row("broker.tls.server_name", &c.Broker.TLS.ServerName, "the host of the URL", "name that the broker's certificate must have"),
		row("broker.external_auth", &c.Broker.ExternalAuth, "", "log in with the client certificate instead of user and password"),
		row("broker.connection_name", &c.Broker.ConnectionName, "",
			"name of the connections in the broker's management UI, up to 200 bytes"),
		row("broker.heartbeat", &c.Broker.Heartbeat, "", "interval of heartbeats"),
		row("broker.dial_timeout", &c.Broker.DialTimeout, "", "time limit for the TCP, TLS and AMQP handshakes together"),
		row("broker.reconnect_min", &c.Broker.ReconnectMin, "", "first pause between attempts to connect"),
		row("broker.reconnect_max", &c.Broker.ReconnectMax, "", "longest pause between attempts to connect, at least reconnect_min"),
		row("broker.send_timeout", &c.Broker.SendTimeout, "", "time limit for a send without its own deadline"),
		row("broker.max_in_flight", &c.Broker.MaxInFlight, "", "maximum number of messages that await their confirms"),
		row("broker.max_body", &c.Broker.MaxBody, "", "largest body in bytes"),
		row("broker.held_bytes", &c.Broker.HeldBytes, "",
			"size in bytes up to which each consumer buffers messages beyond its prefetch while it holds them (delay.lead); each message counts as its body plus 1024"),
		row("broker.declare", &c.Broker.Declare, "",
			"what may be created: missing (everything that is used), listed (the layout and the destinations in the file), nothing"),
		row("broker.max_route_queues", &c.Broker.MaxRouteQueues, "",
			"maximum number of route queues that a client creates, one for each routing key of an exchange destination"),
		row("delay.strategy", &c.Delay.Strategy, "",
			"bucket (any delay), ttl (declared delays), plugin (x-delayed-message), native (delivery time in a header, RabbitMQ 4.4), auto (chosen by the delay)", bounds{oneOf: strategies}),
		row("delay.prefix", &c.Delay.Prefix, "", "beginning of the names of all delay objects, 1 to 64 bytes"),
		row("delay.queue_type", &c.Delay.QueueType, "",
			"type of delay queues, and of destination queues that are not listed under queues", bounds{oneOf: queueTypes}),
		row("delay.topic_permissions", &c.Delay.TopicPermissions, "", "let the broker check topic permissions for each message"),
		row("delay.lead", &c.Delay.Lead, "0s; with exact 400ms",
			"how long before its due time a message reaches its consumer, which holds it until then (up to a second earlier if that saves hops); a destination's own lead takes precedence", bounds{max: topology.MaxLead}),
		row("delay.exact", &c.Delay.Exact, "",
			"handle messages at their due time to the millisecond: a lead of 400ms and, for bucket, a resolution of 100ms; every consumer must be able to hold messages"),
		row("delay.bucket.layout", &c.Delay.Bucket.Layout, "",
			"number system of the bucket strategy: clock, hex or binary; or the queues of nservicebus or celery"),
		row("delay.bucket.radices", &c.Delay.Bucket.Radices, "none", "a custom layout instead: radices, lowest position first"),
		row("delay.bucket.resolution", &c.Delay.Bucket.Resolution, "10ms; hex, radices and exact: 100ms; binary: 1s",
			"step of the bucket strategy's delays, 10ms to 1h"),
		row("delay.ttl.delays", &c.Delay.TTL.Delays, "none", "the delays of the ttl strategy, 1ms to ten years"),
		row("delay.ttl.round_up", &c.Delay.TTL.RoundUp, "", "round a delay that is not declared up to the next longer one"),
		row("delay.plugin.min", &c.Delay.Plugin.Min, "",
			"shortest delay for which auto uses the plugin", bounds{max: plugin.MaxDelay}),
		row("delay.plugin.max", &c.Delay.Plugin.Max, "",
			"longest delay of the plugin; if min or max is set, auto uses the plugin between them", bounds{min: time.Millisecond, max: plugin.MaxDelay}),
		row("delay.native.queues", &c.Delay.Native.Queues, "", "holding queues of the native strategy, which are quorum queues"),
		row("delay.native.auto", &c.Delay.Native.Auto, "",
			"let auto use native instead of bucket if the broker delays messages until a given time"),
		row("database.url", &c.Database.URL, "none", "database of tasks and idempotency: postgres://, mysql:// or sqlite:path"),
		row("serve.listen", &c.serve.Listen, "",
			"address on which rabbitdelay serve listens, HOST:PORT; an address that other machines can reach needs serve.users"),
		row("serve.users", &c.serve.Users, "none", "file with users and tokens, which rabbitdelay users writes"),
		row("serve.path_prefix", &c.serve.PathPrefix, "none", "prefix of all paths behind a proxy, such as /rabbitdelay"),
		row("serve.proxy.trusted", &c.serve.Proxy.Trusted, "none",
			"addresses or networks, such as 10.0.0.0/8, of the reverse proxies in front of serve; their X-Forwarded-For identifies the client in failed logins"),
		row("serve.proxy.user_header", &c.serve.Proxy.UserHeader, "none",
			"header with the user whom the proxy has authenticated, such as X-Forwarded-User; requests from other addresses are refused"),
		row("serve.proxy.role_header", &c.serve.Proxy.RoleHeader, "none; every user is a viewer",
			"header with the user's groups, separated by commas or bars, such as X-Forwarded-Groups"),
		row("serve.proxy.operators", &c.serve.Proxy.Operators, "operator", "groups whose users are operators"),
		row("serve.proxy.viewers", &c.serve.Proxy.Viewers, "viewer", "groups whose users are viewers"),
		row("serve.title", &c.serve.Title, "rabbitdelay",
			"title at the top of every page, to distinguish installations, such as shop (staging)"),
		row("serve.color", &c.serve.Color, "none", "colour of a line above all pages, such as #c62828 for production"),
		row("serve.trace_url", &c.serve.TraceURL, "none",
			"link to a task's trace, with {id} for the trace's id, such as https://traces.example.org/trace/{id}"),
		row("serve.discarded", &c.serve.Discarded, "none",
			"directory in which the console and the API save discarded messages; if it is not set, they discard none"),
		row("serve.keep_audit", &c.serve.KeepAudit, "90d",
			"how long the audit log and the jobs are kept", bounds{min: time.Hour, max: 3650 * 24 * time.Hour}),
		row("serve.tls.cert", &c.serve.TLS.Cert, "none", "PEM file of the certificate chain, for https"),
		row("serve.tls.key", &c.serve.TLS.Key, "none", "PEM file of its private key"),
	}
}

// defaults returns a Config with the defaults of all settings that have a value.
func defaults() *Config {
	c := &Config{Broker: Broker{Config: amqpx.Config{}.WithDefaults()}}
	c.setDefaults()
	c.Delay.Bucket.Layout, c.Delay.Plugin.Max, c.Delay.Native.Queues = dlx.LayoutClock, plugin.MaxDelay, dlx.DefaultNativeQueues
	return c
}

// byDefault returns the text that describes a setting's default.
func (s setting) byDefault() string {
	v := reflect.ValueOf(s.field).Elem().Interface()
	if d, ok := v.(time.Duration); ok {
		return cmp.Or(s.def, topology.FormatDuration(d))
	}
	return cmp.Or(s.def, fmt.Sprint(v))
}

// meaning returns the help text with the bounds. It obtains the bounds of amqpx and dlx from their errors for a value
// that is out of range.
func (s setting) meaning() string {
	limits := s.bounds.String()
	if len(s.bounds.oneOf) > 0 && strings.Contains(s.help, s.bounds.oneOf[0]) {
		limits = "" // the help text already explains the bounds
	}
	c := defaults()
	same := slices.IndexFunc(settings, func(o setting) bool { return o.path == s.path })
	if v := reflect.ValueOf(settingsOf(c)[same].field).Elem(); v.CanInt() && limits == "" {
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

// previousPath is the path of the list of previous layouts, each of which is a mapping. The list can only be set in the
// file.
const previousPath = "delay.previous"

// previousSettings returns the rows for one item of the list, at path.
func previousSettings(path string, l *Previous) []setting {
	return []setting{
		{path: path + ".delays", field: &l.Delays}, {path: path + ".layout", field: &l.Layout},
		{path: path + ".queue_type", field: &l.QueueType}, {path: path + ".queues", field: &l.Queues},
		{path: path + ".radices", field: &l.Radices}, {path: path + ".resolution", field: &l.Resolution},
		{path: path + ".strategy", field: &l.Strategy},
	}
}

// variable returns the environment variable of a setting.
func variable(path string) string {
	return envPrefix + "_" + strings.ToUpper(strings.ReplaceAll(path, ".", "_"))
}

const envPrefix = "RABBITDELAY"

// Setting describes one setting for display.
type Setting struct {
	Path     string `json:"path"` // the path in YAML
	Type     string `json:"type"`
	Default  string `json:"default"`
	Variable string `json:"variable"` // the environment variable; empty if only the file can set it
	Meaning  string `json:"meaning"`  // including its bounds
}

// Settings returns all settings, as the command `rabbitdelay settings` lists them. The items of delay.previous are
// described as one setting.
func Settings() []Setting {
	var list []Setting
	for _, s := range settings {
		words, _ := typeOf(s.field)
		list = append(list, Setting{s.path, words, s.byDefault(), variable(s.path), s.meaning()})
	}
	return append(list, Setting{
		Path: previousPath, Type: "list of layouts", Default: "none",
		Meaning: "earlier values of delay, each with strategy (default bucket), queue_type (default delay.queue_type), and layout, radices and resolution of bucket, delays of ttl, or queues of native; destinations stay bound to them until rabbitdelay retire has deleted them",
	})
}

// typeOf returns the type of a setting in words and its kind in YAML.
func typeOf(field any) (string, yamldoc.Kind) {
	switch field.(type) {
	case *URL:
		return "URL", yamldoc.Scalar
	case *[]URL:
		return "list of URLs", yamldoc.List
	case *[]string:
		return "list of texts", yamldoc.List
	case *[]int:
		return "list of integers", yamldoc.List
	case *[]time.Duration:
		return "list of durations", yamldoc.List
	case *bool:
		return "true or false", yamldoc.Boolean
	case *int:
		return "integer", yamldoc.Integer
	case *time.Duration:
		return "duration", yamldoc.Duration
	}
	return "text", yamldoc.Scalar
}

// errEmpty reports an empty value, usually from an environment variable that is not set. The default is not used
// instead, because that could hide the mistake.
var errEmpty = errors.New("is empty; give a value, or leave it out for the default")

// parse parses the text of a setting into its field. It rejects an empty scalar value if it was given explicitly. Its
// errors never contain the text of a URL.
func parse(field any, texts []string, given bool) error {
	switch f := field.(type) {
	case *[]URL:
		return parseList(f, texts, func(s string) (URL, error) { return URL(s), nil })
	case *[]string:
		if given && slices.Equal(texts, []string{""}) {
			return errEmpty
		}
		return parseList(f, texts, parseText)
	case *[]int:
		return parseList(f, texts, parseInt)
	case *[]time.Duration:
		return parseList(f, texts, topology.ParseDuration)
	}
	if len(texts) != 1 {
		return fmt.Errorf("expected one value, got %d", len(texts))
	}
	text := texts[0]
	if given && text == "" {
		return errEmpty
	}
	switch f := field.(type) {
	case *bool:
		if text != "true" && text != "false" {
			return fmt.Errorf("expected true or false, got %q", yamldoc.Clip(text))
		}
		*f = text == "true"
	case *int:
		n, err := parseInt(text)
		*f = n
		return err
	case *time.Duration:
		d, err := topology.ParseDuration(text)
		*f = d
		return err
	default:
		reflect.ValueOf(field).Elem().SetString(text) // panics for a kind without a parser
	}
	return nil
}

func parseList[T any](dst *[]T, texts []string, one func(string) (T, error)) error {
	list := make([]T, len(texts))
	var wrong []string
	for i, s := range texts {
		var err error
		if list[i], err = one(strings.TrimSpace(s)); err != nil {
			wrong = append(wrong, fmt.Sprintf("item %d: %v", i+1, err))
		}
	}
	*dst = list
	if len(wrong) > 0 {
		return errors.New(strings.Join(wrong, "; "))
	}
	return nil
}

func parseText(s string) (string, error) {
	if s == "" {
		return "", errors.New("it is empty")
	}
	return s, nil
}

func parseInt(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil {
		return 0, fmt.Errorf("expected an integer, got %q", yamldoc.Clip(s))
	}
	return n, nil
}

package config

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// setting is one value that the file, the environment or a flag may give.
type setting struct {
	path  string
	field func(*Config) any // pointer to where it goes
}

var settings = []setting{
	{"broker.url", func(c *Config) any { return &c.Broker.URL }},
	{"broker.urls", func(c *Config) any { return &c.Broker.URLs }},
	{"broker.management_url", func(c *Config) any { return &c.Broker.ManagementURL }},
	{"broker.tls.ca", func(c *Config) any { return &c.Broker.TLS.CA }},
	{"broker.tls.cert", func(c *Config) any { return &c.Broker.TLS.Cert }},
	{"broker.tls.key", func(c *Config) any { return &c.Broker.TLS.Key }},
	{"broker.tls.server_name", func(c *Config) any { return &c.Broker.TLS.ServerName }},
	{"broker.external_auth", func(c *Config) any { return &c.Broker.ExternalAuth }},
	{"broker.connection_name", func(c *Config) any { return &c.Broker.ConnectionName }},
	{"broker.heartbeat", func(c *Config) any { return &c.Broker.Heartbeat }},
	{"broker.dial_timeout", func(c *Config) any { return &c.Broker.DialTimeout }},
	{"broker.reconnect_min", func(c *Config) any { return &c.Broker.ReconnectMin }},
	{"broker.reconnect_max", func(c *Config) any { return &c.Broker.ReconnectMax }},
	{"broker.send_timeout", func(c *Config) any { return &c.Broker.SendTimeout }},
	{"broker.max_in_flight", func(c *Config) any { return &c.Broker.MaxInFlight }},
	{"broker.max_body", func(c *Config) any { return &c.Broker.MaxBody }},
	{"broker.declare", func(c *Config) any { return &c.Broker.Declare }},
	{"delay.strategy", func(c *Config) any { return &c.Delay.Strategy }},
	{"delay.prefix", func(c *Config) any { return &c.Delay.Prefix }},
	{"delay.queue_type", func(c *Config) any { return &c.Delay.QueueType }},
	{"delay.topic_permissions", func(c *Config) any { return &c.Delay.TopicPermissions }},
	{"delay.bucket.layout", func(c *Config) any { return &c.Delay.Bucket.Layout }},
	{"delay.bucket.radices", func(c *Config) any { return &c.Delay.Bucket.Radices }},
	{"delay.bucket.resolution", func(c *Config) any { return &c.Delay.Bucket.Resolution }},
	{"delay.ttl.delays", func(c *Config) any { return &c.Delay.TTL.Delays }},
	{"delay.ttl.round_up", func(c *Config) any { return &c.Delay.TTL.RoundUp }},
	{"delay.plugin.min", func(c *Config) any { return &c.Delay.Plugin.Min }},
	{"delay.plugin.max", func(c *Config) any { return &c.Delay.Plugin.Max }},
	{"database.url", func(c *Config) any { return &c.Database.URL }},
}

// previousPath is the list of mappings that only the file can give.
const previousPath = "delay.previous"

// previousSettings are the settings of one item, at path.
func previousSettings(path string, l *Layout) []setting {
	return []setting{
		{path + ".layout", func(*Config) any { return &l.Layout }},
		{path + ".radices", func(*Config) any { return &l.Radices }},
		{path + ".resolution", func(*Config) any { return &l.Resolution }},
	}
}

// variable is the environment variable of a setting.
func variable(path string) string {
	return envPrefix + "_" + strings.ToUpper(strings.ReplaceAll(path, ".", "_"))
}

const envPrefix = "RABBITDELAY"

// isList tells whether a setting takes several values.
func isList(field any) bool {
	switch field.(type) {
	case *[]URL, *[]int, *[]time.Duration:
		return true
	}
	return false
}

// assign reads the text of a setting into its field. Its errors never contain
// the text of a URL.
func assign(field any, texts []string) error {
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
	var err error
	switch f := field.(type) {
	case *string:
		*f = text
	case *URL:
		*f = URL(text)
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
		return 0, fmt.Errorf("expected an integer, got %q", clip(s))
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
	return false, fmt.Errorf("expected true or false, got %q", clip(s))
}

// clip keeps a value that is quoted in an error short.
func clip(s string) string {
	if len(s) > 64 {
		return strings.ToValidUTF8(s[:64], "") + "…"
	}
	return s
}

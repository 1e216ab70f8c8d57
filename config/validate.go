package config

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/plugin"
	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/yamldoc"
)

// setDefaults fills in what the settings' documentation says. What amqpx and dlx
// have defaults for stays zero.
func (c *Config) setDefaults() {
	c.Serve.Listen = cmp.Or(c.Serve.Listen, DefaultListen)
	c.Delay.Strategy = cmp.Or(c.Delay.Strategy, StrategyBucket)
	c.Delay.Prefix = cmp.Or(c.Delay.Prefix, topology.DefaultPrefix)
	c.Delay.QueueType = cmp.Or(c.Delay.QueueType, topology.Quorum)
}

// Validate checks every setting and reports all that is wrong, in one *Error.
// Load calls it; use it for a Config that was built or changed in Go.
func (c *Config) Validate() error {
	c.setDefaults()
	if problems := c.problems(); len(problems) > 0 {
		return &Error{File: c.file, Problems: problems}
	}
	return nil
}

// checker gathers problems.
type checker struct {
	problems yamldoc.Problems
	origins  yamldoc.Places
}

// given tells whether a setting was written down. A 0 then means 0, and not the
// default.
func (k *checker) given(path string) bool {
	_, ok := k.origins[path]
	return ok
}

func (k *checker) badf(path, format string, args ...any) {
	k.problems.Addf(yamldoc.Place{}, path, format, args...)
}

func (c *Config) problems() []Problem {
	k := &checker{origins: c.origins}
	k.broker(&c.Broker)
	k.delay(&c.Delay)
	if c.Database.URL != "" {
		if err := checkDatabase(c.Database.URL); err != nil {
			k.badf("database.url", "%v", err)
		}
	}
	k.serve(&c.Serve)
	if len(k.problems) == 0 {
		k.destinations(c)
	}
	return k.problems
}

func (k *checker) broker(b *Broker) {
	secure := b.secure()
	if b.URL != "" {
		k.brokerURL("broker.url", b.URL)
	}
	for i, u := range b.URLs {
		path := fmt.Sprintf("broker.urls[%d]", i)
		if k.brokerURL(path, u) != secure {
			k.badf(path, "expected the scheme of the others; the nodes of a cluster are all amqp:// or all amqps://")
		}
	}
	k.login(b)
	if b.ManagementURL != "" {
		u, err := url.Parse(string(b.ManagementURL))
		if err != nil || u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https" {
			k.badf("broker.management_url", managementForm)
		} else if err := amqpx.CheckURL(string(b.ManagementURL)); err != nil {
			k.badf("broker.management_url", "%v", err)
		}
	}
	if !secure {
		for _, f := range []struct{ name, value string }{
			{"ca", b.TLS.CA}, {"cert", b.TLS.Cert}, {"key", b.TLS.Key}, {"server_name", b.TLS.ServerName},
		} {
			if f.value != "" {
				k.badf("broker.tls."+f.name, "%q; it has no effect with amqp://; use amqps:// in broker.url", yamldoc.Clip(f.value))
			}
		}
	}
	if (b.TLS.Cert == "") != (b.TLS.Key == "") {
		missing, there := "key", "cert"
		if b.TLS.Cert == "" {
			missing, there = "cert", "key"
		}
		k.badf("broker.tls."+missing, "is not set, but broker.tls.%s is; a client certificate needs both", there)
	}
	if b.ExternalAuth && (b.TLS.Cert == "" || !secure) {
		k.badf("broker.external_auth", "true; it needs amqps:// and a client certificate (broker.tls.cert and broker.tls.key)")
	}
	k.client(b)
}

// client checks what amqpx has the bounds of. A 0 that somebody has written down
// is a 0, and not the default.
func (k *checker) client(b *Broker) {
	given := b.client()
	c := given.WithDefaults()
	c.URL = "amqp://checked-above/"
	for path, put := range map[string]func(){
		"heartbeat":     func() { c.Heartbeat = given.Heartbeat },
		"dial_timeout":  func() { c.DialTimeout = given.DialTimeout },
		"reconnect_min": func() { c.ReconnectMin = given.ReconnectMin },
		"reconnect_max": func() { c.ReconnectMax = given.ReconnectMax },
		"send_timeout":  func() { c.SendTimeout = given.SendTimeout },
		"max_in_flight": func() { c.MaxInFlight = given.MaxInFlight },
		"max_body":      func() { c.MaxBody = given.MaxBody },

		"max_route_queues": func() { c.MaxRouteQueues = given.MaxRouteQueues },
	} {
		if k.given("broker." + path) {
			put()
		}
	}
	k.fields(c.Validate(), "broker")
}

// brokerURL tells whether the URL is amqps.
func (k *checker) brokerURL(path string, u URL) (secure bool) {
	if _, err := amqpx.ParseURL(string(u)); err != nil {
		k.badf(path, "%v", err)
	}
	return strings.HasPrefix(string(u), "amqps:")
}

// short is a duration in an error.
func short(d time.Duration) string { return topology.FormatDuration(d) }

func (k *checker) delay(d *Delay) {
	switch d.Strategy {
	case StrategyBucket, StrategyTTL, StrategyPlugin, StrategyNative, StrategyAuto:
	default:
		k.badf("delay.strategy", "%q; expected auto, bucket, ttl, plugin or native", yamldoc.Clip(d.Strategy))
	}
	if err := topology.CheckPrefix(d.Prefix); err != nil {
		k.fields(err, "delay")
	}
	if d.QueueType != topology.Quorum && d.QueueType != topology.Classic {
		k.badf("delay.queue_type", "%q; expected quorum or classic", yamldoc.Clip(string(d.QueueType)))
	}
	k.layout(*d, d.Bucket, "delay.bucket")
	if d.Strategy == StrategyAuto && topology.IsForeignLayout(d.Bucket.Layout) {
		k.badf("delay.strategy", "auto; the layout %s needs strategy: bucket", d.Bucket.Layout)
	}
	for i, l := range d.Previous {
		k.previous(*d, l, fmt.Sprintf("%s[%d]", previousPath, i))
	}
	switch {
	case len(d.TTL.Delays) == 0 && d.Strategy == StrategyTTL:
		k.badf("delay.ttl.delays", "is empty; list the delays of the ttl strategy, such as [60s, 15m]")
	case len(d.TTL.Delays) > 0:
		k.fields(dlx.TTLConfig{Delays: d.TTL.Delays}.Validate(), "delay.ttl")
	}
	k.plugin(&d.Plugin)
	k.native(d.Native.Queues, "delay.native")
}

// native checks the number of holding queues.
func (k *checker) native(queues int, path string) {
	if queues == 0 && k.given(path+".queues") {
		k.badf(path+".queues", "0; expected 1 or more; leave it out for the default")
		return
	}
	k.fields(dlx.NativeConfig{Queues: queues}.Validate(), path)
}

func (k *checker) previous(d Delay, p Previous, path string) {
	d.QueueType = cmp.Or(p.QueueType, d.QueueType)
	if p.QueueType != "" && p.QueueType != topology.Quorum && p.QueueType != topology.Classic {
		k.badf(path+".queue_type", "%q; expected quorum or classic", yamldoc.Clip(string(p.QueueType)))
	}
	strategy := cmp.Or(p.Strategy, StrategyBucket)
	switch strategy {
	case StrategyBucket:
		k.layout(d, Layout{Layout: p.Layout, Radices: p.Radices, Resolution: p.Resolution}, path)
	case StrategyTTL:
		k.fields(dlx.TTLConfig{Delays: p.Delays}.Validate(), path)
	case StrategyPlugin:
	case StrategyNative:
		k.native(p.Queues, path)
	default:
		k.badf(path+".strategy", "%q; expected bucket, ttl, plugin or native; of auto, give each", yamldoc.Clip(p.Strategy))
	}
	for _, f := range []struct{ key, of string }{
		{"layout", StrategyBucket}, {"radices", StrategyBucket}, {"resolution", StrategyBucket}, {"delays", StrategyTTL}, {"queues", StrategyNative},
	} {
		if strategy != f.of && k.given(path+"."+f.key) {
			k.badf(path+"."+f.key, "is for strategy: %s", f.of)
		}
	}
}

func (k *checker) layout(d Delay, l Layout, path string) {
	switch {
	case topology.IsForeignLayout(l.Layout):
		k.foreignLayout(d, l, path)
	case l.Resolution == 0 && k.given(path+".resolution"):
		k.badf(path+".resolution", "0s; expected 10ms or more; leave it out for the default")
	case l.Layout != "" && !slices.Contains(layouts, l.Layout):
		k.badf(path+".layout", "%q; expected binary, celery, clock, hex or nservicebus, or radices instead", yamldoc.Clip(l.Layout))
	default:
		k.fields(Delay{}.layout(l).Validate(), path)
	}
}

var layouts = []string{dlx.LayoutClock, dlx.LayoutHex, dlx.LayoutBinary}

// foreignLayout checks what another system has decided.
func (k *checker) foreignLayout(d Delay, l Layout, path string) {
	if len(l.Radices) > 0 || k.given(path+".radices") {
		k.badf(path+".radices", "are set; the layout %s has its own", l.Layout)
	}
	if l.Resolution != 0 && l.Resolution != time.Second || l.Resolution == 0 && k.given(path+".resolution") {
		k.badf(path+".resolution", "%s; expected 1s, which the layout %s has", short(l.Resolution), l.Layout)
	}
	if l.Layout == dlx.LayoutNServiceBus && d.QueueType == topology.Classic {
		k.badf(path+".layout", "%s; it needs queue_type: quorum", l.Layout)
	}
}

func (k *checker) plugin(p *Plugin) {
	if (p.Max != 0 || k.given("delay.plugin.max")) && (p.Max < time.Millisecond || p.Max > plugin.MaxDelay) {
		k.badf("delay.plugin.max", "%s; expected 1ms to %s", short(p.Max), short(plugin.MaxDelay))
	}
	switch {
	case p.Min < 0 || p.Min > plugin.MaxDelay:
		k.badf("delay.plugin.min", "%s; expected 0s to %s", short(p.Min), short(plugin.MaxDelay))
	case p.Max > 0 && p.Max < p.Min:
		k.badf("delay.plugin.min", "%s; expected at most delay.plugin.max, %s", short(p.Min), short(p.Max))
	}
	for _, f := range []struct {
		name string
		d    time.Duration
	}{{"min", p.Min}, {"max", p.Max}} {
		if f.d%time.Millisecond != 0 {
			k.badf("delay.plugin."+f.name, "%s; expected whole milliseconds", short(f.d))
		}
	}
}

// fields turns what other packages say about their Config's fields into
// problems of the settings under path.
func (k *checker) fields(err error, path string) {
	if err == nil {
		return
	}
	if list, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range list.Unwrap() {
			k.fields(e, path)
		}
		return
	}
	f, ok := errors.AsType[*topology.FieldError](err)
	if !ok {
		k.badf(path, "%v", err)
		return
	}
	k.badf(path+"."+snake(f.Field), "%s; expected %s", f.Given(), f.Want)
}

// snake is the YAML key of a Go field: QueueType -> queue_type.
func snake(field string) string {
	var b strings.Builder
	for i, r := range field {
		if unicode.IsUpper(r) && i > 0 {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// destinations finds those whose name is too long for a strategy's routing keys.
func (k *checker) destinations(c *Config) {
	strategies, err := c.offline()
	if err != nil {
		k.badf("delay", "%v", err)
		return
	}
	for i, d := range c.Topology.Destinations {
		path := fmt.Sprintf("destinations[%d]", i)
		for _, s := range strategies {
			if _, err := s.Route(d, 0, 0); err != nil {
				k.badf(path, "%v", err)
				break
			}
		}
	}
}

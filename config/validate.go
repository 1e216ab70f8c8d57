package config

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/internal/brokerurl"
	"github.com/rabbitdelay/rabbitdelay/internal/foreign"
	"github.com/rabbitdelay/rabbitdelay/internal/serveconf"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
	"github.com/rabbitdelay/rabbitdelay/internal/yamldoc"
	"github.com/rabbitdelay/rabbitdelay/plugin"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// setDefaults fills in the defaults, except those of amqpx and dlx.
func (c *Config) setDefaults() {
	c.serve.SetDefaults()
	c.Delay.Strategy = cmp.Or(c.Delay.Strategy, StrategyBucket)
	c.Delay.Prefix = cmp.Or(c.Delay.Prefix, topology.DefaultPrefix)
	c.Delay.QueueType = cmp.Or(c.Delay.QueueType, topology.Quorum)
	if c.Delay.Exact {
		c.setExact()
	}
}

// These are the defaults of delay.exact. The lead is longer than the resolution of the clock layout plus the lateness
// of a broker under load. With a lead, messages are exact even with a coarse resolution, which costs the broker less
// than a fine one.
const (
	exactLead       = 400 * time.Millisecond
	exactResolution = 100 * time.Millisecond
)

func (c *Config) setExact() {
	if _, given := c.origins["delay.lead"]; !given {
		c.Delay.Lead = cmp.Or(c.Delay.Lead, exactLead)
	}
	if b := &c.Delay.Bucket; cmp.Or(b.Layout, dlx.LayoutClock) == dlx.LayoutClock && len(b.Radices) == 0 {
		b.Resolution = cmp.Or(b.Resolution, exactResolution)
	}
}

// Validate checks every setting and reports all problems in one *Error. Load has already made the same checks, so call
// Validate only for a Config that was built or changed in Go.
func (c *Config) Validate() error {
	c.setDefaults()
	if problems := c.problems(); len(problems) > 0 {
		return failed(c.file, problems)
	}
	return nil
}

// checker checks the settings and collects the problems that it finds.
type checker struct {
	problems yamldoc.Problems
	origins  yamldoc.Places
}

// given reports whether a setting was set explicitly. If so, 0 means 0 and not the default.
func (k *checker) given(path string) bool {
	_, ok := k.origins[path]
	return ok
}

func (k *checker) badf(path, format string, args ...any) {
	k.problems.Addf(yamldoc.Place{}, path, format, args...)
}

func (c *Config) problems() yamldoc.Problems {
	k := &checker{origins: c.origins}
	k.bounds(c)
	k.broker(&c.Broker)
	k.delay(&c.Delay)
	if c.Database.URL != "" {
		if err := checkDatabase(c.Database.URL); err != nil {
			k.badf("database.url", "%v", err)
		}
	}
	k.serve(&c.serve)
	if len(k.problems) == 0 {
		k.destinations(c)
		k.schedules(c)
	}
	return k.problems
}

// bounds checks that the value of each setting is within its bounds.
func (k *checker) bounds(c *Config) {
	for _, s := range settingsOf(c) {
		v := reflect.ValueOf(s.field).Elem()
		switch b := s.bounds; {
		case len(b.oneOf) > 0:
			if !slices.Contains(b.oneOf, v.String()) {
				k.badf(s.path, "%q; expected %s", yamldoc.Clip(v.String()), b)
			}
		case b.max > 0:
			d := time.Duration(v.Int())
			switch {
			case (d != 0 || k.given(s.path)) && (d < b.min || d > b.max):
				k.badf(s.path, "%s; expected %s", topology.FormatDuration(d), b)
			case d%time.Millisecond != 0:
				k.badf(s.path, "%s; expected whole milliseconds", topology.FormatDuration(d))
			}
		}
	}
}

// pair checks that a certificate and its key are set together.
func (k *checker) pair(path, cert, key, why string) {
	switch {
	case cert == "" && key != "":
		k.badf(path+".cert", "is not set, but %s.key is; %s", path, why)
	case cert != "" && key == "":
		k.badf(path+".key", "is not set, but %s.cert is; %s", path, why)
	}
}

func (k *checker) broker(b *Broker) {
	secure := b.secure()
	if b.URL != "" {
		k.brokerURL("broker.url", b.URL)
	}
	for i, u := range b.URLs {
		path := fmt.Sprintf("broker.urls[%d]", i)
		if k.brokerURL(path, u) != secure {
			k.badf(path, "expected the same scheme as the other URLs; the nodes of a cluster must be all amqp:// or all amqps://")
		}
	}
	k.login(b)
	if b.ManagementURL != "" {
		u, err := url.Parse(string(b.ManagementURL))
		if err != nil || u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https" {
			k.badf("broker.management_url", managementForm)
		} else if err := brokerurl.Check(string(b.ManagementURL)); err != nil {
			k.badf("broker.management_url", "%v", err)
		}
	}
	if !secure && !strings.HasPrefix(string(b.ManagementURL), "https:") { // the files may be for the management API alone
		for _, f := range []struct{ name, value string }{
			{"ca", b.TLS.CA}, {"cert", b.TLS.Cert}, {"key", b.TLS.Key}, {"server_name", b.TLS.ServerName},
		} {
			if f.value != "" {
				k.badf("broker.tls."+f.name, "%q has no effect with amqp://; use amqps:// in broker.url, or https:// in broker.management_url", yamldoc.Clip(f.value))
			}
		}
	}
	k.pair("broker.tls", b.TLS.Cert, b.TLS.Key, "a client certificate needs both")
	if b.ExternalAuth && (b.TLS.Cert == "" || !secure) {
		k.badf("broker.external_auth", "true; external authentication needs amqps:// and a client certificate (broker.tls.cert and broker.tls.key)")
	}
	k.client(b)
}

// client checks the settings whose limits amqpx defines.
func (k *checker) client(b *Broker) {
	c := Config{Broker: Broker{Config: b.WithDefaults()}}
	c.Broker.Config.URL, c.Broker.Config.URLs = "amqp://checked-above/", nil
	written := settingsOf(&Config{Broker: *b})
	for i, s := range settingsOf(&c) { // keep an explicit 0, which WithDefaults would replace
		if v := reflect.ValueOf(s.field).Elem(); strings.HasPrefix(s.path, "broker.") && v.CanInt() && k.given(s.path) {
			v.Set(reflect.ValueOf(written[i].field).Elem())
		}
	}
	k.fieldErrors(c.Broker.Config.Validate(), "broker")
}

// brokerURL validates a URL and reports whether its scheme is amqps.
func (k *checker) brokerURL(path string, u URL) (secure bool) {
	if _, err := brokerurl.Parse(string(u)); err != nil {
		k.badf(path, "%v", err)
	}
	return strings.HasPrefix(string(u), "amqps:")
}

// headerName matches the names of HTTP headers that a proxy may use for a user.
var headerName = regexp.MustCompile(`^[A-Za-z0-9-]+$`)

func (k *checker) proxy(p *serveconf.Proxy) {
	networks, err := p.Networks()
	if err != nil {
		k.badf("serve.proxy.trusted", "%v", err)
	}
	for _, h := range []struct{ path, name string }{{"serve.proxy.user_header", p.UserHeader}, {"serve.proxy.role_header", p.RoleHeader}} {
		switch {
		case h.name == "":
		case !headerName.MatchString(h.name):
			k.badf(h.path, "%q; expected the name of a header, such as X-Forwarded-User", yamldoc.Clip(h.name))
		case slices.ContainsFunc([]string{"Authorization", "Cookie", "Host"}, func(s string) bool { return strings.EqualFold(s, h.name) }):
			k.badf(h.path, "%s; expected a header that only the proxy sets, such as X-Forwarded-User", h.name)
		}
	}
	switch {
	case p.UserHeader == "" && p.RoleHeader != "":
		k.badf("serve.proxy.role_header", "has no effect without serve.proxy.user_header")
	case p.UserHeader == "":
	case len(p.Trusted) == 0:
		k.badf("serve.proxy.user_header", "any client can send this header; set serve.proxy.trusted to the proxy's own addresses")
	}
	for i, n := range networks {
		if p.UserHeader != "" && n.Bits() == 0 {
			k.badf("serve.proxy.trusted", "%s trusts every client; expected the proxy's own addresses", p.Trusted[i])
		}
	}
}

func (k *checker) serve(s *serveconf.Settings) {
	if _, _, err := net.SplitHostPort(s.Listen); err != nil {
		k.badf("serve.listen", "%q; expected HOST:PORT, such as %s or :8086", yamldoc.Clip(s.Listen), serveconf.DefaultListen)
	}
	if p := s.PathPrefix; p != "" && (!strings.HasPrefix(p, "/") || strings.HasSuffix(p, "/") || strings.Contains(p, "//") || strings.ContainsAny(p, " ?#%;\"\\")) {
		k.badf("serve.path_prefix", "%q; expected a path such as /rabbitdelay", yamldoc.Clip(p))
	}
	k.proxy(&s.Proxy)
	for _, x := range []struct {
		path string
		err  error
	}{{"serve.title", shown.CheckTitle(s.Title)}, {"serve.color", shown.CheckColor(s.Color)}, {"serve.trace_url", shown.CheckTraceLink(s.TraceURL)}} {
		if x.err != nil {
			k.badf(x.path, "%v", x.err)
		}
	}
	k.pair("serve.tls", s.TLS.Cert, s.TLS.Key, "https needs both")
}

func (k *checker) delay(d *Delay) {
	if err := topology.CheckPrefix(d.Prefix); err != nil {
		k.fieldErrors(err, "delay")
	}
	k.layout(*d, d.Bucket, "delay.bucket")
	if d.Strategy == StrategyAuto && foreign.IsLayout(d.Bucket.Layout) {
		k.badf("delay.strategy", "auto; the layout %s needs strategy: bucket", d.Bucket.Layout)
	}
	for i, l := range d.Previous {
		k.previous(*d, l, fmt.Sprintf("%s[%d]", previousPath, i))
	}
	switch {
	case len(d.TTL.Delays) == 0 && d.Strategy == StrategyTTL:
		k.badf("delay.ttl.delays", "is empty; list the delays of the ttl strategy, such as [60s, 15m]")
	case len(d.TTL.Delays) > 0:
		k.fieldErrors(dlx.TTLConfig{Delays: d.TTL.Delays}.Validate(), "delay.ttl")
	}
	if p := d.Plugin; p.Max > 0 && p.Max < p.Min && p.Min <= plugin.MaxDelay {
		k.badf("delay.plugin.min", "%s; expected at most delay.plugin.max, %s", topology.FormatDuration(p.Min), topology.FormatDuration(p.Max))
	}
	k.native(d.Native.Queues, "delay.native")
	k.lead(d)
}

// lead rejects a lead with a strategy that cannot shorten its delays by the lead, or with a layout whose consumers do
// not support leads.
func (k *checker) lead(d *Delay) {
	path, value := "delay.lead", topology.FormatDuration(d.Lead)
	if d.Exact {
		path, value = "delay.exact", "true"
	}
	switch {
	case d.Lead == 0:
	case d.Strategy == StrategyTTL:
		k.badf(path, "%s; the ttl strategy supports only declared delays, which it cannot shorten by a lead; use strategy: bucket", value)
	case d.foreign():
		k.badf(path, "%s; consumers of the layout %s do not hold messages; remove the lead", value, d.Bucket.Layout)
	}
}

// native checks the number of holding queues.
func (k *checker) native(queues int, path string) {
	if queues == 0 && k.given(path+".queues") {
		k.badf(path+".queues", "0; expected 1 or more; omit it for the default")
		return
	}
	k.fieldErrors(dlx.NativeConfig{Queues: queues}.Validate(), path)
}

func (k *checker) previous(d Delay, p Previous, path string) {
	d.QueueType = cmp.Or(p.QueueType, d.QueueType)
	if p.QueueType != "" && !slices.Contains(queueTypes, string(p.QueueType)) {
		k.badf(path+".queue_type", "%q; expected quorum or classic", yamldoc.Clip(string(p.QueueType)))
	}
	strategy := cmp.Or(p.Strategy, StrategyBucket)
	switch strategy {
	case StrategyBucket:
		k.layout(d, Layout{Layout: p.Layout, Radices: p.Radices, Resolution: p.Resolution}, path)
	case StrategyTTL:
		k.fieldErrors(dlx.TTLConfig{Delays: p.Delays}.Validate(), path)
	case StrategyPlugin:
	case StrategyNative:
		k.native(p.Queues, path)
	default:
		k.badf(path+".strategy", "%q; expected bucket, ttl, plugin or native; for auto, list each of its strategies", yamldoc.Clip(p.Strategy))
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
	case foreign.IsLayout(l.Layout):
		k.foreignLayout(d, l, path)
	case l.Resolution == 0 && k.given(path+".resolution"):
		k.badf(path+".resolution", "0s; expected 10ms or more; omit it for the default")
	case l.Layout != "" && !slices.Contains(layouts, l.Layout):
		k.badf(path+".layout", "%q; expected binary, celery, clock, hex or nservicebus, or set radices instead", yamldoc.Clip(l.Layout))
	default:
		k.fieldErrors(Delay{}.bucketConfig(l).Validate(), path)
	}
}

var layouts = []string{dlx.LayoutClock, dlx.LayoutHex, dlx.LayoutBinary}

// foreignLayout checks the settings of another system's layout.
func (k *checker) foreignLayout(d Delay, l Layout, path string) {
	if len(l.Radices) > 0 || k.given(path+".radices") {
		k.badf(path+".radices", "are set; the layout %s has its own radices", l.Layout)
	}
	if l.Resolution != 0 && l.Resolution != time.Second || l.Resolution == 0 && k.given(path+".resolution") {
		k.badf(path+".resolution", "%s; expected 1s, the resolution of the layout %s", topology.FormatDuration(l.Resolution), l.Layout)
	}
	if l.Layout == dlx.LayoutNServiceBus && d.QueueType == topology.Classic {
		k.badf(path+".layout", "%s; this layout needs queue_type: quorum", l.Layout)
	}
}

// fieldErrors converts the errors of other packages about fields of their Config to problems of the settings under
// path.
func (k *checker) fieldErrors(err error, path string) {
	for _, e := range unjoined(err) {
		if f, ok := errors.AsType[*topology.FieldError](e); ok {
			k.badf(path+"."+snake(f.Field), "%s; expected %s", f.Given(), f.Want)
		} else {
			k.badf(path, "%v", e)
		}
	}
}

// unjoined returns the errors that are joined in err, at any depth.
func unjoined(err error) []error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return slices.DeleteFunc([]error{err}, func(err error) bool { return err == nil })
	}
	var list []error
	for _, e := range joined.Unwrap() {
		list = append(list, unjoined(e)...)
	}
	return list
}

// snake returns the YAML key of a Go field, such as queue_type for QueueType, or correlation_id for CorrelationID.
func snake(field string) string {
	var b strings.Builder
	for i, r := range field {
		if unicode.IsUpper(r) && i > 0 && !unicode.IsUpper(rune(field[i-1])) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// schedules reports recurring tasks with destinations that clients with this configuration would reject.
func (k *checker) schedules(c *Config) {
	for i, r := range c.Schedules {
		if r.Validate() != nil {
			continue // an invalid item, which the file's reader has already reported
		}
		field := "queue"
		if r.Task.Queue == "" {
			field = "exchange"
		}
		if err := c.Listed(r.Task.Destination()); err != nil {
			k.badf(fmt.Sprintf("%s[%d].%s", schedulesKey, i, field), "%v", err)
		}
	}
}

// destinations reports destinations with names that are too long for the strategies' routing keys.
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

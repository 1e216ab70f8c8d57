package config

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/topology/live"
)

// Dial opens a plain AMQP connection, without supervision, to the first node
// that answers: to plan, apply and destroy, and to probe. The caller closes it.
// See amqpx.Dial for its errors.
func (c *Config) Dial(ctx context.Context) (*amqp.Connection, error) {
	cfg, err := c.Client(nil, nil)
	if err != nil {
		return nil, err
	}
	cfg.ConnectionName = cmp.Or(cfg.ConnectionName, "rabbitdelay") + " setup"
	return amqpx.Dial(ctx, cfg)
}

// managementTimeout bounds one inspection through the management API.
const managementTimeout = 20 * time.Second

// Management is an inspector that reads the broker through its management API,
// at broker.management_url or else at the default port of the brokers' hosts, with
// the broker's user. It does not connect yet.
func (c *Config) Management() (*live.Management, error) {
	b := &c.Broker
	cfg := live.ManagementConfig{Timeout: managementTimeout}
	for _, node := range b.nodes() {
		uri, err := amqpx.ParseURL(string(node))
		if err != nil {
			return nil, fmt.Errorf("broker.url: %w", err)
		}
		user := url.UserPassword(uri.Username, uri.Password)
		if b.separate() {
			name, password, err := b.login(string(node))
			if err != nil {
				return nil, &Error{File: c.file, Problems: []Problem{{Path: "broker.password_file", Message: err.Error()}}}
			}
			user = url.UserPassword(name, password)
		}
		cfg.Vhost = uri.Vhost
		u := &url.URL{Scheme: "http", Host: net.JoinHostPort(uri.Host, "15672")}
		if uri.Scheme == "amqps" {
			u.Scheme, u.Host = "https", net.JoinHostPort(uri.Host, "15671")
		}
		if own, err := url.Parse(string(b.ManagementURL)); err == nil && b.ManagementURL != "" {
			u = own
		}
		if u.User == nil {
			u.User = user
		}
		cfg.URLs = append(cfg.URLs, u.String())
		if b.ManagementURL != "" {
			break
		}
	}
	cfg.URL, cfg.URLs = cfg.URLs[0], cfg.URLs[1:]
	getTLS, problem := b.TLS.load(nil)
	if problem != nil {
		return nil, &Error{File: c.file, Problems: []Problem{*problem}}
	}
	if getTLS != nil {
		cfg.Transport = withTLS(getTLS)
	}
	return live.NewManagement(cfg)
}

// withTLS makes each request with the files as they are then.
type withTLS func() *tls.Config

// RoundTrip is http.RoundTripper's.
func (get withTLS) RoundTrip(r *http.Request) (*http.Response, error) {
	t := &http.Transport{
		Proxy:             http.ProxyFromEnvironment,
		TLSClientConfig:   get().Clone(),
		DisableKeepAlives: true, // no idle connection stays behind
	}
	return t.RoundTrip(r)
}

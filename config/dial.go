package config

import (
	"cmp"
	"context"
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
// at broker.management_url or else at the default port of the broker's host with
// the broker's user. It does not connect yet.
func (c *Config) Management() (*live.Management, error) {
	uri, err := amqpx.ParseURL(string(c.Broker.URL))
	if err != nil {
		return nil, fmt.Errorf("broker.url: %w", err)
	}
	cfg := live.ManagementConfig{URL: string(c.Broker.ManagementURL), Vhost: uri.Vhost, Timeout: managementTimeout}
	if cfg.URL == "" {
		u := url.URL{Scheme: "http", Host: net.JoinHostPort(uri.Host, "15672")}
		if uri.Scheme == "amqps" {
			u.Scheme, u.Host = "https", net.JoinHostPort(uri.Host, "15671")
		}
		cfg.URL = u.String()
	}
	if u, err := url.Parse(cfg.URL); err == nil && u.User == nil {
		cfg.Username, cfg.Password = uri.Username, uri.Password
	}
	tlsConfig, problem := c.Broker.TLS.load()
	if problem != nil {
		return nil, &Error{File: c.file, Problems: []Problem{*problem}}
	}
	if tlsConfig != nil {
		cfg.Transport = &http.Transport{
			Proxy:             http.ProxyFromEnvironment,
			TLSClientConfig:   tlsConfig,
			DisableKeepAlives: true, // no idle connection stays behind
		}
	}
	return live.NewManagement(cfg)
}

package config

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/topology/mgmt"
)

// Dial opens a plain AMQP connection, without supervision, to the first node
// that answers: to plan, apply and destroy, and to probe. The caller closes it.
func (c *Config) Dial(ctx context.Context) (*amqp.Connection, error) {
	var errs []error
	for _, u := range append([]URL{c.Broker.URL}, c.Broker.URLs...) {
		conn, err := c.dial(ctx, u)
		if err == nil {
			return conn, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

func (c *Config) dial(ctx context.Context, u URL) (*amqp.Connection, error) {
	uri, err := amqp.ParseURI(string(u))
	if err != nil {
		return nil, errors.New("broker.url: " + brokerForm)
	}
	tlsConfig, problem := c.Broker.TLS.load()
	if problem != nil {
		return nil, &Error{File: c.file, Problems: []Problem{*problem}}
	}
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(c.Broker.DialTimeout, amqpx.DefaultDialTimeout))
	defer cancel()
	ac := amqp.Config{
		Heartbeat:       cmp.Or(c.Broker.Heartbeat, amqpx.DefaultHeartbeat),
		Locale:          "en_US",
		Properties:      amqp.Table{"product": "rabbitdelay", "connection_name": cmp.Or(c.Broker.ConnectionName, "rabbitdelay") + " setup"},
		TLSClientConfig: tlsConfig,
		Dial: func(network, addr string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			// The library clears the deadline after the handshake.
			if deadline, ok := ctx.Deadline(); ok {
				if err := conn.SetDeadline(deadline); err != nil {
					_ = conn.Close()
					return nil, err
				}
			}
			return conn, nil
		},
	}
	if c.Broker.ExternalAuth {
		ac.SASL = []amqp.Authentication{&amqp.ExternalAuth{}}
	}
	conn, err := amqp.DialConfig(string(u), ac)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", net.JoinHostPort(uri.Host, strconv.Itoa(uri.Port)), err)
	}
	return conn, nil
}

// managementTimeout bounds one inspection through the management API.
const managementTimeout = 20 * time.Second

// Management is an inspector that reads the broker through its management API,
// at broker.management_url or else at the default port of the broker's host with
// the broker's user. It does not connect yet.
func (c *Config) Management() (*mgmt.Inspector, error) {
	uri, err := amqp.ParseURI(string(c.Broker.URL))
	if err != nil {
		return nil, errors.New("broker.url: " + brokerForm)
	}
	cfg := mgmt.Config{URL: string(c.Broker.ManagementURL), Vhost: uri.Vhost, Timeout: managementTimeout}
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
	return mgmt.New(cfg)
}

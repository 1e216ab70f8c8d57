package config

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/internal/brokerurl"
	"github.com/rabbitdelay/rabbitdelay/internal/tlsfiles"
	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/live"
)

// Dial opens a plain AMQP connection, which does not reconnect, to the first node that answers. Use it for plan, apply,
// destroy and probes. The caller closes the connection. See inspect.Dial for its errors.
func (c *Config) Dial(ctx context.Context) (*amqp.Connection, error) {
	cfg, err := c.Client(nil, nil)
	if err != nil {
		return nil, err
	}
	cfg.ConnectionName = cmp.Or(cfg.ConnectionName, "rabbitdelay") + " setup"
	return inspect.Dial(ctx, cfg)
}

// managementTimeout bounds one inspection through the management API.
const managementTimeout = 20 * time.Second

// ErrNoManagement is returned by Management if the address of the management API is unknown.
var ErrNoManagement = errors.New("the management API's address is unknown; set broker.management_url, such as http://user:password@host:15672 (it is only guessed if the broker uses port 5672, or 5671 with TLS)")

const managementForm = "expected a URL such as http://user:password@host:15672"

// Management returns an inspector that reads the broker through its management API. The address is
// broker.management_url, or else the default port of the management API on those broker hosts whose AMQP port is the
// default, because a host that maps one port usually maps the other. The inspector logs in as the broker's user unless
// broker.management_url contains a user. Management does not connect. It returns ErrNoBroker, ErrNoManagement, an
// *Error for a file that cannot be read, or an error about an invalid URL.
func (c *Config) Management() (*live.Management, error) {
	b := &c.Broker
	if b.first() == "" {
		return nil, ErrNoBroker
	}
	cfg := live.ManagementConfig{Timeout: managementTimeout}
	for _, node := range b.nodes() {
		uri, err := brokerurl.Parse(string(node))
		if err != nil {
			return nil, fmt.Errorf("broker.url: %w", err)
		}
		user := url.UserPassword(uri.Username, uri.Password)
		if b.separate() {
			name, password, err := b.credentials(string(node))
			if err != nil {
				return nil, &Error{File: c.file, Problems: []topology.Problem{{Path: "broker.password_file", Message: err.Error()}}}
			}
			user = url.UserPassword(name, password)
		}
		cfg.Vhost = uri.Vhost
		var u *url.URL
		switch {
		case b.ManagementURL != "":
			if u, err = url.Parse(string(b.ManagementURL)); err != nil {
				return nil, errors.New("broker.management_url: " + managementForm) // err contains the URL, which may contain a password
			}
		case uri.Scheme == "amqp" && uri.Port == 5672:
			u = &url.URL{Scheme: "http", Host: net.JoinHostPort(uri.Host, "15672")}
		case uri.Scheme == "amqps" && uri.Port == 5671:
			u = &url.URL{Scheme: "https", Host: net.JoinHostPort(uri.Host, "15671")}
		default:
			continue
		}
		if u.User == nil {
			u.User = user
		}
		cfg.URLs = append(cfg.URLs, u.String())
		if b.ManagementURL != "" {
			break
		}
	}
	if len(cfg.URLs) == 0 {
		return nil, ErrNoManagement
	}
	cfg.URL, cfg.URLs = cfg.URLs[0], cfg.URLs[1:]
	getTLS, problem := b.TLS.reloading(nil)
	if problem != nil {
		return nil, &Error{File: c.file, Problems: []topology.Problem{*problem}}
	}
	if getTLS != nil {
		cfg.Transport = withTLS(getTLS)
	}
	return live.NewManagement(cfg)
}

// reloading reads the files, and returns a function that reads them again at each handshake. It returns nil if nothing
// is set. If a file cannot be used, the returned Problem names its setting.
func (t TLS) reloading(log *zap.Logger) (func() *tls.Config, *topology.Problem) {
	if t == (TLS{}) {
		return nil, nil
	}
	get, err := tlsfiles.Files(t).Load(log)
	if fe, ok := errors.AsType[*tlsfiles.Error](err); ok {
		return nil, &topology.Problem{Path: "broker.tls." + strings.ToLower(fe.Field), Message: fe.Text}
	}
	return get, nil
}

// withTLS is a round tripper that reads the TLS files again for each request.
type withTLS func() *tls.Config

// RoundTrip implements http.RoundTripper.
func (get withTLS) RoundTrip(r *http.Request) (*http.Response, error) {
	t := &http.Transport{
		Proxy:             http.ProxyFromEnvironment,
		TLSClientConfig:   get().Clone(),
		DisableKeepAlives: true, // leave no idle connection behind
	}
	return t.RoundTrip(r)
}

package wire

import (
	"context"
	"crypto/tls"
	"net"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/guard"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/table"
	"github.com/rabbitdelay/rabbitdelay/internal/brokerurl"
	"github.com/rabbitdelay/rabbitdelay/internal/plan"
)

// Config configures how to connect. All fields except Login and ExternalAuth are required.
type Config struct {
	Nodes []string // URLs, tried in random order
	// Name is the first part of the connection names that the broker's management UI shows.
	Name string
	// Login returns a user and a password, which replace the ones in the URLs. If it is nil, the ones in the URLs are
	// used.
	Login        func(ctx context.Context) (username, password string, err error)
	ExternalAuth bool // SASL EXTERNAL
	// TLS returns a configuration for one handshake. The caller may modify it.
	TLS  func(uri amqp.URI) (*tls.Config, error)
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)

	Heartbeat                  time.Duration
	DialTimeout                time.Duration
	ReconnectMin, ReconnectMax time.Duration

	// Failed converts a failed attempt to connect into an error.
	Failed func(Failure) error
	// Permanent reports whether further attempts after an error are pointless.
	Permanent func(err error) bool
	Log       *zap.Logger
}

// Dial opens a connection to the first node that accepts one, in the same way as Open and for the given role. If no
// node does, the error contains the failure of each node that was tried. The attempts stop when ctx ends. The parameter
// over is a context whose end closes the connection abruptly.
func Dial(ctx, over context.Context, cfg Config, role string) (*amqp.Connection, error) {
	n := newNodes(cfg.Nodes)
	for left := len(n.all); ; left-- {
		conn, err := Open(ctx, over, cfg, n.next(), role)
		if err == nil {
			return conn, nil
		}
		if err = n.fail(err); left == 1 || ctx.Err() != nil {
			return nil, err
		}
	}
}

// Open makes one connection to the node of a URL. It does not reconnect. Writes are buffered, and headers that amqp091
// cannot read are replaced before it sees them. The name of the connection is Config.Name, followed by the role if it
// is not empty. The parameter over is a context whose end closes the connection abruptly.
func Open(ctx, over context.Context, cfg Config, rawURL, role string) (conn *amqp.Connection, err error) {
	uri, err := brokerurl.Parse(rawURL)
	if err != nil {
		return nil, err
	}
	a := &attempt{cfg: cfg, over: over, uri: uri, name: strings.TrimSpace(cfg.Name + " " + role)}
	if p := guard.Call(cfg.Log, "Dial, Login or GetTLS of the configuration", func() { conn, err = a.open(ctx, rawURL) }); p != nil {
		return nil, a.failed(p.Error(), p)
	}
	return conn, err
}

// Product is the product name that connections made by Open report to the broker.
const Product = "rabbitdelay"

type attempt struct {
	cfg  Config
	over context.Context
	uri  amqp.URI
	name string

	first  greeting
	socket *table.Reader // nil before there is a connection
	stop   func() bool   // prevents the end of the context from closing the connection
}

func (a *attempt) open(ctx context.Context, rawURL string) (*amqp.Connection, error) {
	whole := ctx
	ctx, cancel := context.WithTimeout(ctx, a.cfg.DialTimeout)
	defer cancel()
	ac := amqp.Config{
		Heartbeat:  a.cfg.Heartbeat,
		Locale:     "en_US",
		Properties: amqp.Table{"product": Product, "connection_name": a.name, "platform": "Go"},
		Dial:       func(network, _ string) (net.Conn, error) { return a.dial(ctx, network) },
	}
	switch {
	case a.cfg.ExternalAuth:
		ac.SASL = []amqp.Authentication{&amqp.ExternalAuth{}}
	case a.cfg.Login != nil:
		user, password, err := a.cfg.Login(ctx)
		if err != nil {
			return nil, a.failed("could not get the user and password: "+err.Error(), err)
		}
		a.uri.Username = user // for error messages
		ac.SASL = []amqp.Authentication{&amqp.PlainAuth{Username: user, Password: password}}
	}
	_, rest, _ := strings.Cut(rawURL, ":")
	conn, err := amqp.DialConfig("amqp:"+rest, ac) // secure does the encryption instead of amqp091
	if a.stop != nil && !a.stop() {                // ctx ended during the handshake
		if err == nil {
			CloseConn(conn)
		}
		err = ctx.Err()
	}
	if err != nil {
		if a.socket != nil {
			_ = a.socket.Close()
		}
		return nil, a.explain(whole, err)
	}
	a.socket.SetFrameMax(conn.Config.FrameSize)
	return conn, nil
}

// dial opens the network connection below AMQP.
func (a *attempt) dial(ctx context.Context, network string) (net.Conn, error) {
	c, err := a.cfg.Dial(ctx, network, hostPort(a.uri))
	if err != nil {
		return nil, err
	}
	// The deadline limits the handshake. amqp091 clears it afterwards.
	if deadline, ok := ctx.Deadline(); ok {
		if err := c.SetDeadline(deadline); err != nil {
			_ = c.Close()
			return nil, err
		}
	}
	a.stop = context.AfterFunc(ctx, func() { _ = c.Close() })
	secured, err := a.secure(ctx, newWriter(a.over, a.first.of(c)))
	if err != nil {
		return nil, err
	}
	a.socket = table.NewReader(secured)
	return a.socket, nil
}

// secure encrypts the connection if its scheme is amqps. It closes the connection if that fails.
func (a *attempt) secure(ctx context.Context, c net.Conn) (net.Conn, error) {
	if a.uri.Scheme != "amqps" {
		return c, nil
	}
	cfg, err := a.cfg.TLS(a.uri)
	if err == nil {
		if cfg.ServerName == "" {
			cfg.ServerName = a.uri.Host
		}
		secured := tls.Client(c, cfg)
		if err = secured.HandshakeContext(ctx); err == nil {
			return secured, nil
		}
	}
	_ = c.Close()
	return nil, err
}

// CloseConn closes a connection gracefully, and waits at most 2 s for a broker that does not answer.
func CloseConn(conn *amqp.Connection) {
	_ = conn.CloseDeadline(time.Now().Add(2 * time.Second))
}

// Broker returns the product and version of a connection's broker, such as "RabbitMQ 4.3.1", or "unknown".
func Broker(conn *amqp.Connection) string {
	product, _ := conn.Properties["product"].(string)
	version, _ := conn.Properties["version"].(string)
	if product == "" && version == "" {
		return "unknown"
	}
	return product + " " + version
}

// IsRabbitMQ reports whether a string that Broker has returned names RabbitMQ. It also returns true for a broker that
// does not report its product.
func IsRabbitMQ(broker string) bool {
	product, _, _ := strings.Cut(broker, " ")
	return product == "RabbitMQ" || product == "" || product == "unknown"
}

// Version parses the version in a string that Broker has returned.
func Version(broker string) plan.Version {
	_, text, _ := strings.Cut(broker, " ")
	return plan.ParseVersion(text)
}

func hostPort(uri amqp.URI) string { return net.JoinHostPort(uri.Host, strconv.Itoa(uri.Port)) }

// Address returns the host and port of a broker's URL, or an empty string if the URL is invalid.
func Address(rawURL string) string {
	uri, err := brokerurl.Parse(rawURL)
	if err != nil {
		return ""
	}
	return hostPort(uri)
}

package amqpx

import (
	"context"
	"crypto/tls"
	"net"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/guard"
)

// Dial opens one connection as Open does, to the first of Config.URL and URLs
// that answers, in a random order, and declares nothing. It is for tools that
// inspect a broker. The caller closes it. If no node answers, the error has a
// *DialError for each.
func Dial(ctx context.Context, cfg Config) (*amqp.Connection, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	n := cfg.nodes()
	for left := len(n.all); ; left-- {
		conn, err := dial(ctx, context.Background(), cfg, n.next(), cfg.ConnectionName)
		if err == nil {
			return conn, nil
		}
		if err = n.fail(err); left == 1 || ctx.Err() != nil {
			return nil, err
		}
	}
}

// dial makes one connection, without recovery, through a coalescing writer and a
// reader that keeps from amqp091 what it cannot read. The end of
// over cuts it.
func dial(ctx, over context.Context, cfg Config, rawURL, name string) (conn *amqp.Connection, err error) {
	uri, err := ParseURL(rawURL)
	if err != nil {
		return nil, err
	}
	if p := guard.Call("Dial, Login or GetTLS of the configuration", func() { conn, err = dialTo(ctx, over, cfg, uri, rawURL, name) }); p != nil {
		p.Log(cfg.Logger)
		return nil, &DialError{Address: hostPort(uri), Reason: p.Error(), Err: p}
	}
	return conn, err
}

func dialTo(ctx, over context.Context, cfg Config, uri amqp.URI, rawURL, name string) (*amqp.Connection, error) {
	whole := ctx
	ctx, cancel := context.WithTimeout(ctx, cfg.DialTimeout)
	defer cancel()
	var stop func() bool
	var socket *readableConn
	var first greeting
	ac := amqp.Config{
		Heartbeat:  cfg.Heartbeat,
		Locale:     "en_US",
		Properties: amqp.Table{"product": "rabbitdelay", "connection_name": name, "platform": "Go"},
		Dial: func(network, _ string) (net.Conn, error) {
			c, err := cfg.Dial(ctx, network, hostPort(uri))
			if err != nil {
				return nil, err
			}
			// amqp091 clears the deadline after the handshake.
			if deadline, ok := ctx.Deadline(); ok {
				if err := c.SetDeadline(deadline); err != nil {
					_ = c.Close()
					return nil, err
				}
			}
			stop = context.AfterFunc(ctx, func() { _ = c.Close() })
			secured, err := secure(ctx, cfg, uri, newCoalescingConn(over, first.of(c)))
			if err != nil {
				return nil, err
			}
			socket = newReadableConn(secured)
			return socket, nil
		},
	}
	switch {
	case cfg.ExternalAuth:
		ac.SASL = []amqp.Authentication{&amqp.ExternalAuth{}}
	case cfg.Login != nil:
		user, password, err := cfg.Login(ctx)
		if err != nil {
			return nil, &DialError{Address: hostPort(uri), Reason: "no user and password to log in with: " + err.Error(), Err: err}
		}
		uri.Username = user // for errors
		ac.SASL = []amqp.Authentication{&amqp.PlainAuth{Username: user, Password: password}}
	}
	conn, err := amqp.DialConfig(plainURL(rawURL), ac)
	if stop != nil && !stop() { // ctx ended during the handshake
		if err == nil {
			closeConn(conn)
		}
		err = ctx.Err()
	}
	if err != nil {
		if socket != nil {
			_ = socket.Close()
		}
		return nil, dialError(whole, cfg, uri, &first, err)
	}
	socket.frameMax.Store(uint32(conn.Config.FrameSize))
	return conn, nil
}

// plainURL is a URL with which amqp091 does not encrypt, because that is done already.
func plainURL(rawURL string) string {
	_, rest, _ := strings.Cut(rawURL, ":")
	return "amqp:" + rest
}

// secure encrypts a connection that is to be. It closes one that cannot be.
func secure(ctx context.Context, cfg Config, uri amqp.URI, c net.Conn) (net.Conn, error) {
	if uri.Scheme != "amqps" {
		return c, nil
	}
	tc, err := cfg.tlsFor(uri)
	if err == nil {
		secured := tls.Client(c, tc)
		if err = secured.HandshakeContext(ctx); err == nil {
			return secured, nil
		}
	}
	_ = c.Close()
	return nil, err
}

// tlsFor is the configuration of a handshake.
func (c Config) tlsFor(uri amqp.URI) (t *tls.Config, err error) {
	switch {
	case c.GetTLS != nil:
		t = c.GetTLS().Clone()
	case c.TLS != nil:
		t = c.TLS.Clone()
	default:
		files := TLSFiles{CA: uri.CACertFile, Cert: uri.CertFile, Key: uri.KeyFile, ServerName: uri.ServerName}
		var raw pemFiles
		if raw, err = files.read(); err != nil {
			return nil, err
		}
		if t, err = files.parse(raw); err != nil {
			return nil, err
		}
	}
	if t.ServerName == "" {
		t.ServerName = uri.Host
	}
	return t, nil
}

// closeConn closes politely, but does not wait for a broker that is stuck.
func closeConn(conn *amqp.Connection) {
	_ = conn.CloseDeadline(time.Now().Add(2 * time.Second))
}

func brokerVersion(conn *amqp.Connection) string {
	product, _ := conn.Properties["product"].(string)
	version, _ := conn.Properties["version"].(string)
	if product == "" && version == "" {
		return "unknown"
	}
	return product + " " + version
}

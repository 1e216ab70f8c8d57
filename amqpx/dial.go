package amqpx

import (
	"context"
	"net"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
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
		conn, err := dial(ctx, cfg, n.next(), cfg.ConnectionName)
		if err == nil {
			return conn, nil
		}
		if err = n.fail(err); left == 1 || ctx.Err() != nil {
			return nil, err
		}
	}
}

// dial makes one connection, without recovery, through a coalescing writer.
func dial(ctx context.Context, cfg Config, rawURL, name string) (*amqp.Connection, error) {
	uri, err := ParseURL(rawURL)
	if err != nil {
		return nil, err
	}
	whole := ctx
	ctx, cancel := context.WithTimeout(ctx, cfg.DialTimeout)
	defer cancel()
	var stop func() bool
	var socket net.Conn
	var first greeting
	ac := amqp.Config{
		Heartbeat:  cfg.Heartbeat,
		Locale:     "en_US",
		Properties: amqp.Table{"product": "rabbitdelay", "connection_name": name, "platform": "Go"},
		Dial: func(network, addr string) (net.Conn, error) {
			c, err := cfg.Dial(ctx, network, addr)
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
			socket = newCoalescingConn(first.of(c))
			return socket, nil
		},
	}
	if cfg.GetTLS != nil {
		ac.TLSClientConfig = cfg.GetTLS().Clone()
	} else if cfg.TLS != nil {
		ac.TLSClientConfig = cfg.TLS.Clone()
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
	conn, err := amqp.DialConfig(rawURL, ac)
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
	return conn, nil
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

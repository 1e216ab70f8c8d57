package wire

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/internal/channels"
)

// Failure describes a failed attempt to connect: what answered at a broker's address, if anything, and what that means.
type Failure struct {
	Address string // host:port
	Reason  string
	Final   bool  // trying again with the same configuration is pointless
	Err     error // the error of the library or of the operating system
}

// failed returns the error of an attempt that may be repeated.
func (a *attempt) failed(reason string, err error) error {
	return a.cfg.Failed(Failure{Address: hostPort(a.uri), Reason: reason, Err: err})
}

// explain returns a descriptive error for a failed handshake.
func (a *attempt) explain(ctx context.Context, err error) error {
	a.first.mu.Lock()
	heard, failed := a.first.heard, a.first.err
	a.first.mu.Unlock()
	if failed != nil && len(heard) == 0 && ctx.Err() == nil {
		heard = a.askHTTP(ctx)
	}
	// If the connection ends during login, amqp091 reports a wrong password, no matter what the cause was.
	if timeout, ok := errors.AsType[net.Error](failed); ok && timeout.Timeout() {
		err = failed
	}
	f := Failure{Address: hostPort(a.uri), Err: err}
	if failed != nil && IsCode(err, amqp.FrameError) {
		err = failed
	}
	f.Reason, f.Final = reasonOf(a.uri, heard, err)
	return a.cfg.Failed(f)
}

func reasonOf(uri amqp.URI, heard []byte, err error) (reason string, final bool) {
	if text, ok := otherProtocol(uri, heard, err); ok {
		return text, true
	}
	if channels.Limited(err) {
		return fmt.Sprintf("the broker refused the connection: %v", channels.Advised(err)), false
	}
	if text, ok := refusal(uri, err); ok {
		return text, true
	}
	if isTLSError(err) {
		return fmt.Sprintf("TLS: %v; the certificate must be for this host, signed by an authority in the system's certificates or in the configured CA file", err), true
	}
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		why := dns.Err
		if _, asked, ok := strings.Cut(why, "->"); ok { // "read udp LOCAL->SERVER: …"
			why = asked
		}
		return fmt.Sprintf("the name %q does not resolve: %s", dns.Name, why), false
	}
	timeout, ok := errors.AsType[net.Error](err)
	text := withoutAddresses(err).Error()
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Sprintf("connection refused: %s; is the broker running, and is this its port? (the default is 5672 for amqp, 5671 for amqps)", text), false
	case errors.Is(err, context.Canceled):
		return err.Error(), false
	case ok && timeout.Timeout():
		return fmt.Sprintf("no answer in time: %s; a firewall may drop packets, the broker may hang, or this is not a broker", text), false
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, net.ErrClosed), errors.Is(err, amqp.ErrClosed):
		if len(heard) == 0 {
			return fmt.Sprintf("the connection was closed without an answer: %s; the broker may be starting or stopping, a proxy may have no broker to connect to, or this may be a TLS port that needs amqps://", text), false
		}
		return fmt.Sprintf("the connection was closed during the handshake: %s", text), false
	}
	return text, false
}

// otherProtocol explains an error of a server that is not an AMQP broker, or of a broker that requires TLS or does not
// support it. For other errors it returns false.
func otherProtocol(uri amqp.URI, heard []byte, err error) (string, bool) {
	if record, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		heard = record.RecordHeader[:]
		if strings.HasPrefix(string(heard), "AMQP") {
			return "the port speaks AMQP without TLS; use amqp://, or the broker's TLS port (5671 by default)", true
		}
	} else if uri.Scheme == "amqps" {
		return "", false // the bytes that were received are encrypted, so they show nothing
	}
	said := string(heard)
	const frameMethod = 1
	switch {
	case len(heard) == 0, heard[0] == frameMethod:
		return "", false
	case strings.HasPrefix(said, "HTTP/"):
		return "an HTTP server answered instead of an AMQP broker; 15672 is the port of RabbitMQ's management API, while AMQP uses 5672 by default (amqps: 5671)", true
	case len(heard) >= 2 && (heard[0] == 0x15 || heard[0] == 0x16) && heard[1] == 3: // a TLS alert or handshake record
		return "the port speaks TLS; use amqps://, or the broker's plain port (5672 by default)", true
	case strings.HasPrefix(said, "AMQP"):
		return fmt.Sprintf("the broker does not speak AMQP 0-9-1 (it answered %q)", said), true
	}
	return fmt.Sprintf("the server does not speak AMQP (its answer begins with %q)", said), true
}

// refusal explains an error by which the broker refuses the login or the virtual host. For other errors it returns
// false.
func refusal(uri amqp.URI, err error) (string, bool) {
	ae, ok := errors.AsType[*amqp.Error](err)
	switch {
	case !ok:
		return "", false
	case errors.Is(err, amqp.ErrSASL):
		return "the broker offers no login mechanism that this client supports; is PLAIN (or EXTERNAL, with a client certificate) disabled on the broker?", true
	case errors.Is(err, amqp.ErrVhost):
		return fmt.Sprintf("the broker closed the connection when the virtual host %q was opened: %v; does the virtual host exist, and is the user %q allowed to use it?", uri.Vhost, err, uri.Username), true
	case ae.Code == amqp.AccessRefused:
		text := fmt.Sprintf("the broker refused the user %q: %v; is the password correct, and percent-encoded if it is part of a URL?", uri.Username, err)
		if ip := net.ParseIP(uri.Host); uri.Username == "guest" && uri.Host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			text += " RabbitMQ accepts guest only from its own host, unless loopback_users is changed"
		}
		return text, true
	case ae.Code == amqp.NotAllowed:
		return fmt.Sprintf("the broker refused the virtual host %q: %v; does the virtual host exist, and is the user %q allowed to use it?", uri.Vhost, err, uri.Username), true
	}
	return "", false
}

func isTLSError(err error) bool {
	_, unverified := errors.AsType[*tls.CertificateVerificationError](err)
	_, unknown := errors.AsType[x509.UnknownAuthorityError](err)
	_, otherHost := errors.AsType[x509.HostnameError](err)
	_, plain := errors.AsType[tls.RecordHeaderError](err)
	return unverified || unknown || otherHost || plain
}

// greeting is a connection that records the first bytes from the other end and the first read error.
type greeting struct {
	net.Conn
	mu    sync.Mutex // amqp091 may still be reading after its dial has failed
	heard []byte
	err   error
}

func (g *greeting) of(c net.Conn) net.Conn {
	g.Conn = c
	return g
}

// greetingSize is the number of bytes that are recorded, which is enough to distinguish protocols.
const greetingSize = 8

func (g *greeting) Read(p []byte) (int, error) {
	n, err := g.Conn.Read(p)
	err = withoutAddresses(err)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err == nil {
		g.err = err
	}
	if missing := greetingSize - len(g.heard); missing > 0 {
		g.heard = append(g.heard, p[:min(n, missing)]...)
	}
	return n, err
}

func (g *greeting) Write(p []byte) (int, error) {
	n, err := g.Conn.Write(p)
	return n, withoutAddresses(err)
}

// withoutAddresses returns a network error without its addresses, so that its text is the same for every connection.
// The local port differs each time, and the broker's address is known.
func withoutAddresses(err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return &net.OpError{Op: op.Op, Err: op.Err}
	}
	return err
}

const askTimeout = 2 * time.Second

// askHTTP checks whether a server that does not answer is an HTTP server, such as RabbitMQ's management API. An HTTP
// server interprets the AMQP header as the beginning of a request and waits for the rest.
func (a *attempt) askHTTP(ctx context.Context) []byte {
	ctx, cancel := context.WithTimeout(ctx, min(askTimeout, a.cfg.DialTimeout))
	defer cancel()
	conn, err := a.cfg.Dial(ctx, "tcp", hostPort(a.uri))
	if err != nil {
		return nil
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if _, err := io.WriteString(conn, "GET / HTTP/1.0\r\n\r\n"); err != nil {
		return nil
	}
	answer := make([]byte, len("HTTP/"))
	if _, err := io.ReadFull(conn, answer); err != nil || string(answer) != "HTTP/" {
		return nil
	}
	return answer
}

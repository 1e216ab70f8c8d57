package amqpx

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"syscall"

	amqp "github.com/rabbitmq/amqp091-go"
)

// DialError says what answered at a broker's address, if anything, and what
// that means.
type DialError struct {
	Address string // host:port
	Reason  string
	// Final: trying again with the same configuration is pointless.
	Final bool
	Err   error // as the library or the operating system has it
}

func (e *DialError) Error() string { return "connect to " + e.Address + ": " + e.Reason }

// Unwrap gives the cause.
func (e *DialError) Unwrap() error { return e.Err }

// dialError puts a failed dial into words.
func dialError(ctx context.Context, cfg Config, uri amqp.URI, first *greeting, err error) error {
	heard, failed := first.said()
	address := hostPort(uri)
	if failed != nil && len(heard) == 0 && ctx.Err() == nil {
		heard = askHTTP(ctx, cfg, address)
	}
	// amqp091 calls whatever ends the connection while it logs in a wrong password.
	if timeout, ok := errors.AsType[net.Error](failed); ok && timeout.Timeout() {
		err = failed
	}
	e := &DialError{Address: address, Err: err}
	if failed != nil && isCode(err, amqp.FrameError) {
		err = failed
	}
	e.Reason, e.Final = dialReason(uri, heard, err)
	return e
}

func hostPort(uri amqp.URI) string { return net.JoinHostPort(uri.Host, strconv.Itoa(uri.Port)) }

func dialReason(uri amqp.URI, heard []byte, err error) (reason string, final bool) {
	if text, ok := otherProtocol(uri, heard, err); ok {
		return text, true
	}
	if text, ok := refusal(uri, err); ok {
		return text, true
	}
	if isTLSError(err) {
		return fmt.Sprintf("TLS: %v; the certificate must be for this host, signed by an authority in the system's certificates or in the configured CA file", err), true
	}
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		return fmt.Sprintf("the name %q does not resolve: %v", dns.Name, err), false
	}
	timeout, ok := errors.AsType[net.Error](err)
	text := withoutPorts(err)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Sprintf("connection refused: %s; is the broker running, and is this its port? (5672 is the default of amqp, 5671 of amqps)", text), false
	case errors.Is(err, context.Canceled):
		return err.Error(), false
	case ok && timeout.Timeout():
		return fmt.Sprintf("no answer in time: %s; a firewall may drop packets, the broker may hang, or this is not a broker", text), false
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, net.ErrClosed), errors.Is(err, amqp.ErrClosed):
		if len(heard) == 0 {
			return fmt.Sprintf("the connection was closed without an answer: %s; the broker may be starting or stopping, a proxy may have no broker behind it, or a TLS port may have been addressed without TLS", text), false
		}
		return fmt.Sprintf("the other end hung up: %s", text), false
	}
	return text, false
}

// withoutPorts is the text of an error of the network without its addresses: the own port
// is another at each attempt, and the broker's address is known.
func withoutPorts(err error) string {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op.Op + ": " + op.Err.Error()
	}
	return err.Error()
}

// otherProtocol recognizes what is no broker, or is one that wants TLS or does not.
func otherProtocol(uri amqp.URI, heard []byte, err error) (string, bool) {
	if record, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		heard = record.RecordHeader[:]
		if strings.HasPrefix(string(heard), "AMQP") {
			return "the port speaks AMQP without TLS; use amqp://, or the broker's TLS port (5671 by default)", true
		}
	} else if uri.Scheme == "amqps" {
		return "", false // heard is encrypted
	}
	said := string(heard)
	const frameMethod = 1
	switch {
	case len(heard) == 0, heard[0] == frameMethod:
		return "", false
	case strings.HasPrefix(said, "HTTP/"):
		return "an HTTP server answered, not AMQP; 15672 is the port of RabbitMQ's management, AMQP is at 5672 by default (amqps: 5671)", true
	case len(heard) >= 2 && (heard[0] == 0x15 || heard[0] == 0x16) && heard[1] == 3: // an alert or a handshake
		return "the port speaks TLS; use amqps://, or the broker's plain port (5672 by default)", true
	case strings.HasPrefix(said, "AMQP"):
		return fmt.Sprintf("the broker speaks another version of AMQP than 0-9-1 (it answered %q)", said), true
	}
	return fmt.Sprintf("something that is not AMQP answered (it began with %q)", said), true
}

// refusal recognizes a broker that does not let the user in.
func refusal(uri amqp.URI, err error) (string, bool) {
	ae, ok := errors.AsType[*amqp.Error](err)
	switch {
	case !ok:
		return "", false
	case errors.Is(err, amqp.ErrSASL):
		return "the broker offers no way to log in that this client knows; is its mechanism PLAIN, or EXTERNAL with a client certificate, switched off?", true
	case errors.Is(err, amqp.ErrVhost):
		return fmt.Sprintf("the broker hung up when the virtual host %q was opened: %v; does it exist, and may the user %q use it?", uri.Vhost, err, uri.Username), true
	case ae.Code == amqp.AccessRefused:
		text := fmt.Sprintf("the broker refused the user %q: %v; is the password right, and percent-encoded where it stands in a URL?", uri.Username, err)
		if uri.Username == "guest" && !isLoopback(uri.Host) {
			text += " RabbitMQ takes guest from its own host only, unless loopback_users says otherwise"
		}
		return text, true
	case ae.Code == amqp.NotAllowed:
		return fmt.Sprintf("the broker refused the virtual host %q: %v; does it exist, and may the user %q use it?", uri.Vhost, err, uri.Username), true
	}
	return "", false
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func isTLSError(err error) bool {
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return true
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return true
	}
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return true
	}
	_, ok := errors.AsType[tls.RecordHeaderError](err)
	return ok
}

package wire

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http/httptest"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/zap"
)

// failedError is the error that the test's Config.Failed returns for a failed attempt.
type failedError struct{ Failure }

func (e *failedError) Error() string { return "connect to " + e.Address + ": " + e.Reason }
func (e *failedError) Unwrap() error { return e.Err }

// to returns a configuration for Dial with a single node and a timeout. Its failed attempts result in a *failedError.
func to(url string, timeout time.Duration) Config {
	return Config{
		Nodes: []string{url}, Dial: (&net.Dialer{}).DialContext, DialTimeout: timeout, Heartbeat: time.Minute,
		TLS:    func(amqp.URI) (*tls.Config, error) { return &tls.Config{MinVersion: tls.VersionTLS12}, nil },
		Failed: func(f Failure) error { return &failedError{f} },
		Log:    zap.NewNop(),
	}
}

// frameOf returns a method frame on channel 0.
func frameOf(payload string) string {
	head := binary.BigEndian.AppendUint32([]byte{1, 0, 0}, uint32(len(payload)))
	return string(head) + payload + "\xCE"
}

// These are frames that brokers send during the handshake.
var (
	saysStart = frameOf("\x00\x0a\x00\x0a\x00\x09\x00\x00\x00\x00\x00\x00\x00\x05PLAIN\x00\x00\x00\x05en_US")
	saysTune  = frameOf("\x00\x0a\x00\x1e\x00\x00\x00\x02\x00\x00\x00\x00")
)

func saysClose(code uint16, text string) string {
	return frameOf("\x00\x0a\x00\x32" + string(binary.BigEndian.AppendUint16(nil, code)) + string([]byte{byte(len(text))}) + text + "\x00\x00\x00\x00")
}

// open begins the method connection.open, with which a client opens a virtual host.
const open = "\x00\x0a\x00\x28"

// converse writes one of the lines after each read. It delays a NOT_ALLOWED until the client opens the virtual host.
func converse(conn net.Conn, lines []string) error {
	buf := make([]byte, 1<<16)
	for _, line := range lines {
		for heard := ""; ; {
			n, err := conn.Read(buf)
			if err != nil {
				return err
			}
			heard += string(buf[:n])
			if !strings.Contains(line, "NOT_ALLOWED") || strings.Contains(heard, open) {
				break
			}
		}
		if _, err := conn.Write([]byte(line)); err != nil {
			return err
		}
	}
	return nil
}

// door starts a listener that runs converse on each connection. It then keeps the connection open if silent is true,
// and otherwise closes it after one more read.
func door(t *testing.T, silent bool, lines ...string) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	serve := func(conn net.Conn) {
		defer func() { _ = conn.Close() }()
		if converse(conn, lines) == nil && silent {
			_, _ = io.Copy(io.Discard, conn)
		}
		_, _ = conn.Read(make([]byte, 1<<16))
	}
	go func() {
		defer close(ended)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go serve(conn)
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-ended })
	return l.Addr().String()
}

// management starts an HTTP server that, like RabbitMQ's management, answers only when a request is complete or its
// header is overdue.
func management(t *testing.T) string {
	t.Helper()
	srv := httptest.NewUnstartedServer(nil)
	srv.Config.ReadHeaderTimeout = 50 * time.Millisecond
	srv.Start()
	t.Cleanup(srv.Close)
	return srv.Listener.Addr().String()
}

// The error says what kind of server answered at the address, and what to change.
func TestDialErrorNamesTheServer(t *testing.T) {
	const nobody = "127.0.0.1:1" // nothing listens on port 1, whereas another process could take a port that was just free
	for _, c := range []struct {
		name, scheme, address, want string
		final                       bool
	}{
		{
			"management", "amqp", door(t, false, "HTTP/1.1 400 Bad Request\r\n\r\n"),
			"an HTTP server answered instead of an AMQP broker; 15672 is the port of RabbitMQ's management", true,
		},
		{"silent management", "amqp", management(t), "an HTTP server answered instead of an AMQP broker", true},
		{"management in TLS", "amqps", door(t, false, "HTTP/1.1 400 Bad Request\r\n\r\n"), "an HTTP server answered instead of an AMQP broker", true},
		{"TLS port in plain", "amqp", door(t, false, "\x15\x03\x03\x00\x02\x02\x0a"), "the port speaks TLS; use amqps://", true},
		{"plain port in TLS", "amqps", door(t, false, "AMQP\x00\x00\x09\x01"), "the port speaks AMQP without TLS; use amqp://", true},
		{"AMQP 1.0", "amqp", door(t, false, "AMQP\x00\x01\x00\x00"), "the broker does not speak AMQP 0-9-1", true},
		{"SSH", "amqp", door(t, false, "SSH-2.0-OpenSSH_9.6\r\n"), `the server does not speak AMQP (its answer begins with "SSH-2.0-")`, true},
		{"closed", "amqp", door(t, false), "the connection was closed without an answer", false},
		{"password", "amqp", door(t, false, saysStart), `the broker refused the user "shop": Exception (403) Reason: "username or password not allowed"`, true},
		{
			"virtual host", "amqp",
			door(t, false, saysStart, saysTune, saysClose(530, "NOT_ALLOWED - vhost nope not found")),
			`the broker refused the virtual host "nope": Exception (530) Reason: "NOT_ALLOWED - vhost nope not found"`,
			true,
		},
		{"nobody", "amqp", nobody, "connection refused: dial: connect: connection refused", false},
		{"no name", "amqp", "no-such-broker.invalid:5672", `the name "no-such-broker.invalid" does not resolve`, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Dial(t.Context(), t.Context(), to(c.scheme+"://shop:hunter2@"+c.address+"/nope", 10*time.Second), "")
			e, ok := errors.AsType[*failedError](err)
			if !ok || !strings.HasPrefix(err.Error(), "connect to "+c.address+": "+c.want) || e.Final != c.final {
				t.Fatalf("Dial: got %v (%+v), want the reason %q and Final = %t", err, e, c.want, c.final)
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("Dial: got %v, want an error without the password", err)
			}
		})
	}
}

// If the broker closes the connection during login, amqp091 may wrap the cause in a frame error. The reported reason
// is the cause.
func TestDisconnectIsNotAFrameError(t *testing.T) {
	from := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 46200} // a different port at each attempt
	for want, said := range map[string]error{
		"the connection was closed during the handshake: EOF":                            io.EOF,
		"the connection was closed during the handshake: read: connection reset by peer": &net.OpError{Op: "read", Net: "tcp", Source: from, Err: syscall.ECONNRESET},
	} {
		a := &attempt{cfg: to("amqp://h", time.Second), uri: amqp.URI{Host: "h", Port: 5672}}
		a.first.heard, a.first.err = []byte(saysStart), said
		err := a.explain(t.Context(), &amqp.Error{Code: amqp.FrameError, Reason: said.Error()})
		if e, ok := errors.AsType[*failedError](err); !ok || e.Reason != want || e.Final {
			t.Errorf("the explanation of a frame error after a disconnect: got %v, want a *failedError with Reason = %q and Final = false", err, want)
		}
	}
}

// The error text for a lost connection does not contain the local port, so it is the same for every attempt.
func TestTextOfALostConnection(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	for range 2 {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		far, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		err = errors.Join(far.(*net.TCPConn).SetLinger(0), far.Close()) // sends a reset instead of a FIN
		if err != nil {
			t.Fatal(err)
		}
		g := (&greeting{}).of(c)
		_, read := g.Read(make([]byte, 1))
		if read == nil || read.Error() != "read: read: connection reset by peer" || !errors.Is(read, syscall.ECONNRESET) {
			t.Errorf(`Read: got %v, want ECONNRESET with the text "read: read: connection reset by peer"`, read)
		}
		if _, err := g.Write([]byte("x")); err == nil || strings.Contains(err.Error(), "127.0.0.1") {
			t.Errorf(`Write: got %v, want an error without "127.0.0.1"`, err)
		}
		_ = c.Close()
	}
	unknown := &net.DNSError{Name: "h", Server: "192.0.2.1:53", Err: "read udp 192.0.2.9:41234->192.0.2.1:53: i/o timeout", IsTimeout: true}
	if got, _ := reasonOf(amqp.URI{}, nil, &net.OpError{Op: "dial", Err: unknown}); got != `the name "h" does not resolve: 192.0.2.1:53: i/o timeout` {
		t.Errorf(`reasonOf a DNS timeout: got %q, want "the name \"h\" does not resolve: 192.0.2.1:53: i/o timeout"`, got)
	}
}

// A timeout during the handshake is not reported as a rejected login, so it is not final.
func TestTimeoutIsNoRefusal(t *testing.T) {
	for name, lines := range map[string][]string{"at once": nil, "logging in": {saysStart}, "opening": {saysStart, saysTune}} {
		_, err := Dial(t.Context(), t.Context(), to("amqp://"+door(t, true, lines...)+"/", 50*time.Millisecond), "")
		if e, ok := errors.AsType[*failedError](err); !ok || !strings.Contains(e.Reason, "no answer in time") || e.Final {
			t.Errorf(`%s: Dial returned %v, want a *failedError with "no answer in time" in its Reason and Final = false`, name, err)
		}
	}
}

// Cancelling the context stops Dial at any point of the handshake.
func TestDialEndsWithItsContext(t *testing.T) {
	for _, scheme := range []string{"amqp", "amqps"} {
		for name, lines := range map[string][]string{"at once": nil, "logging in": {saysStart}, "opening": {saysStart, saysTune}} {
			ctx, cancel := context.WithCancel(t.Context())
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatalf("%s: Listen: got %v, want nil", name, err)
			}
			go func() {
				defer cancel() // at this point the client waits for an answer
				conn, err := l.Accept()
				if err != nil {
					return
				}
				t.Cleanup(func() { _ = conn.Close() })
				_ = converse(conn, append(slices.Clone(lines), "")) // ignore the error: the client may close the connection first
			}()
			_, err = Dial(ctx, t.Context(), to(scheme+"://"+l.Addr().String()+"/", time.Hour), "")
			if !errors.Is(err, context.Canceled) && scheme == "amqp" {
				t.Errorf("%s: Dial returned %v, want context.Canceled", name, err)
			}
			_ = l.Close()
		}
	}
}

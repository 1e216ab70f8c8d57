package amqpx

import (
	"context"
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
)

// frameOf is a method frame of channel 0.
func frameOf(payload string) string {
	head := binary.BigEndian.AppendUint32([]byte{1, 0, 0}, uint32(len(payload)))
	return string(head) + payload + "\xCE"
}

// What brokers say in the handshake.
var (
	saysStart = frameOf("\x00\x0a\x00\x0a\x00\x09\x00\x00\x00\x00\x00\x00\x00\x05PLAIN\x00\x00\x00\x05en_US")
	saysTune  = frameOf("\x00\x0a\x00\x1e\x00\x00\x00\x02\x00\x00\x00\x00")
)

func saysClose(code uint16, text string) string {
	return frameOf("\x00\x0a\x00\x32" + string(binary.BigEndian.AppendUint16(nil, code)) + string([]byte{byte(len(text))}) + text + "\x00\x00\x00\x00")
}

// open is in what a client says when it opens a virtual host.
const open = "\x00\x0a\x00\x28"

// converse says its lines, one for each time that something is said to it, and
// that something is not allowed when the virtual host is being opened.
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

// door is a listener that converses and then hangs up, unless it stays silent.
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

// management answers whole requests only, as RabbitMQ's does.
func management(t *testing.T) string {
	t.Helper()
	srv := httptest.NewUnstartedServer(nil)
	srv.Config.ReadHeaderTimeout = 50 * time.Millisecond
	srv.Start()
	t.Cleanup(srv.Close)
	return srv.Listener.Addr().String()
}

// Whatever stands at the address: what it is and what that means is said, and
// Open does not go on where that is pointless.
func TestWhatAnsweredIsSaid(t *testing.T) {
	const nobody = "127.0.0.1:1" // a port that was free a moment ago may be somebody's by now
	for _, c := range []struct {
		name, scheme, address, want string
		final                       bool
	}{
		{"management", "amqp", door(t, false, "HTTP/1.1 400 Bad Request\r\n\r\n"), "an HTTP server answered, not AMQP; 15672 is the port of RabbitMQ's management", true},
		{"silent management", "amqp", management(t), "an HTTP server answered, not AMQP", true},
		{"management in TLS", "amqps", door(t, false, "HTTP/1.1 400 Bad Request\r\n\r\n"), "an HTTP server answered, not AMQP", true},
		{"TLS port in plain", "amqp", door(t, false, "\x15\x03\x03\x00\x02\x02\x0a"), "the port speaks TLS; use amqps://", true},
		{"plain port in TLS", "amqps", door(t, false, "AMQP\x00\x00\x09\x01"), "the port speaks AMQP without TLS; use amqp://", true},
		{"AMQP 1.0", "amqp", door(t, false, "AMQP\x00\x01\x00\x00"), "the broker speaks another version of AMQP than 0-9-1", true},
		{"SSH", "amqp", door(t, false, "SSH-2.0-OpenSSH_9.6\r\n"), `something that is not AMQP answered (it began with "SSH-2.0-")`, true},
		{"hung up", "amqp", door(t, false), "the connection was closed without an answer", false},
		{"password", "amqp", door(t, false, saysStart), `the broker refused the user "shop": Exception (403) Reason: "username or password not allowed"`, true},
		{"virtual host", "amqp", door(t, false, saysStart, saysTune, saysClose(530, "NOT_ALLOWED - vhost nope not found")), `the broker refused the virtual host "nope": Exception (530) Reason: "NOT_ALLOWED - vhost nope not found"`, true},
		{"nobody", "amqp", nobody, "connection refused: dial: connect: connection refused", false},
		{"no name", "amqp", "no-such-broker.invalid:5672", `the name "no-such-broker.invalid" does not resolve`, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := Config{URL: c.scheme + "://shop:hunter2@" + c.address + "/nope"}
			_, err := Dial(t.Context(), cfg)
			e, ok := errors.AsType[*DialError](err)
			if !ok || !strings.HasPrefix(err.Error(), "connect to "+c.address+": "+c.want) || e.Final != c.final {
				t.Fatalf("got %v (%+v), want %s", err, e, c.want)
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("the password is in %v", err)
			}
			if permanent(err) != c.final {
				t.Errorf("permanent: %v", permanent(err))
			}
		})
	}
}

// Open ends with what answered, and not with its deadline.
func TestOpenIsNotTriedInVain(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	_, err := Open(ctx, Config{URL: "amqp://" + door(t, false, "HTTP/1.1 400 Bad Request\r\n\r\n") + "/"})
	if e, ok := errors.AsType[*DialError](err); !ok || !strings.Contains(e.Reason, "an HTTP server answered") || ctx.Err() != nil {
		t.Errorf("got %v", err)
	}
}

// amqp091 has more than one word for a connection that ends while it logs in.
func TestHangingUpIsNoFrameError(t *testing.T) {
	from := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 46200} // another port at each attempt
	for want, said := range map[string]error{
		"the other end hung up: EOF":                            io.EOF,
		"the other end hung up: read: connection reset by peer": &net.OpError{Op: "read", Net: "tcp", Source: from, Err: syscall.ECONNRESET},
	} {
		first := &greeting{heard: []byte(saysStart), err: said}
		err := dialError(t.Context(), Config{}, amqp.URI{Host: "h", Port: 5672}, first, &amqp.Error{Code: amqp.FrameError, Reason: said.Error()})
		if e, ok := errors.AsType[*DialError](err); !ok || e.Reason != want || e.Final {
			t.Errorf("got %v", err)
		}
	}
}

// A broker that hangs is no wrong password.
func TestTimeoutIsNoRefusal(t *testing.T) {
	for name, lines := range map[string][]string{"at once": nil, "logging in": {saysStart}, "opening": {saysStart, saysTune}} {
		_, err := Dial(t.Context(), Config{URL: "amqp://" + door(t, true, lines...) + "/", DialTimeout: 50 * time.Millisecond})
		if e, ok := errors.AsType[*DialError](err); !ok || !strings.Contains(e.Reason, "no answer in time") || e.Final {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// Whoever stops waiting does so at once, at whatever point of the handshake.
func TestDialEndsWithItsContext(t *testing.T) {
	for _, scheme := range []string{"amqp", "amqps"} {
		for name, lines := range map[string][]string{"at once": nil, "logging in": {saysStart}, "opening": {saysStart, saysTune}} {
			ctx, cancel := context.WithCancel(t.Context())
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				defer cancel() // the client has said something and waits for an answer
				conn, err := l.Accept()
				if err != nil {
					return
				}
				t.Cleanup(func() { _ = conn.Close() })
				_ = converse(conn, append(slices.Clone(lines), "")) // the client may hang up first
			}()
			_, err = Dial(ctx, Config{URL: scheme + "://" + l.Addr().String() + "/", DialTimeout: time.Hour})
			if !errors.Is(err, context.Canceled) && scheme == "amqp" {
				t.Errorf("%s: got %v", name, err)
			}
			_ = l.Close()
		}
	}
}

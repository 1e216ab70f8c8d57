package broker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	// startup is how long a broker may take to accept connections. On an idle machine it takes 5 to 10 seconds.
	startup = 5 * time.Minute

	// poll is the interval between readiness checks.
	poll = 100 * time.Millisecond

	// handshake is the timeout of one connection attempt.
	handshake = 5 * time.Second

	// logLines is the number of log lines in the error if a broker does not start.
	logLines = 30
)

// waitReady waits until a broker that Start has started accepts connections, and stores its version. The error includes
// the end of the broker's log.
func (b *Broker) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startup)
	defer cancel()
	version, err := waitReady(ctx, b.url, b.managementURL, b.server.ended)
	if err != nil {
		// Read the log even if the context has expired, because that is when it is needed most.
		logCtx, cancelLog := context.WithTimeout(context.WithoutCancel(ctx), handshake)
		defer cancelLog()
		return &startError{err: err, log: b.server.log(logCtx)}
	}
	// Set the version only at the first start, because other goroutines may read it during a restart.
	if b.version == "" {
		b.version = version
	}
	return nil
}

// startError is returned if a broker did not start.
type startError struct {
	err error
	log string
}

func (e *startError) Error() string {
	if e.log == "" {
		return fmt.Sprintf("the broker did not start: %v; it logged nothing", e.err)
	}
	return fmt.Sprintf("the broker did not start: %v; the end of its log:\n%s", e.err, e.log)
}

func (e *startError) Unwrap() error { return e.err }

// errEnded reports that the broker's process ended before it was ready.
var errEnded = errors.New("its process exited")

var taken = regexp.MustCompile(`eaddrinuse|EADDRINUSE|address already in use|port is already allocated`)

func portTaken(err error) bool { return taken.MatchString(err.Error()) }

// waitReady polls until the broker accepts a connection and, if managementURL is not empty, the management API answers.
// It returns the broker's version.
func waitReady(ctx context.Context, url, managementURL string, ended func(context.Context) bool) (string, error) {
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	for {
		version, err := shakeHands(url)
		if err == nil && managementURL != "" {
			err = askManagement(ctx, managementURL)
		}
		if err == nil {
			return version, nil
		}
		if refused(err) {
			return "", err
		}
		if ended != nil && ended(ctx) {
			return "", fmt.Errorf("%w; the last attempt to connect: %w", errEnded, err)
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("%w; the last attempt to connect: %w", ctx.Err(), err)
		case <-ticker.C:
		}
	}
}

// refused reports whether waiting is pointless, because the credentials, the virtual host or the URL are wrong.
func refused(err error) bool {
	if answer, ok := errors.AsType[*amqp.Error](err); ok {
		return answer.Code == amqp.AccessRefused || answer.Code == amqp.NotAllowed
	}
	return errors.Is(err, errURL)
}

var errURL = errors.New("not an AMQP URL; want amqp://user:password@host:port/vhost")

func shakeHands(url string) (version string, err error) {
	if _, err := amqp.ParseURI(url); err != nil {
		return "", errURL // not err, which may contain the password
	}
	conn, err := amqp.DialConfig(url, amqp.Config{
		Dial:      amqp.DefaultDial(handshake),
		Heartbeat: 10 * time.Second,
		Properties: amqp.Table{
			"connection_name": "rabbitdelay launcher",
		},
	})
	if err != nil {
		return "", err
	}
	version, _ = conn.Properties["version"].(string)
	if err := conn.Close(); err != nil {
		return "", err
	}
	if version == "" {
		return "", errors.New("the server does not report its version; want RabbitMQ")
	}
	return version, nil
}

func askManagement(ctx context.Context, managementURL string) error {
	ctx, cancel := context.WithTimeout(ctx, handshake)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(managementURL, "/")+"/api/overview", http.NoBody)
	if err != nil {
		return err
	}
	// Use a separate client, because the connections of the shared one stay open.
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("management API: %w", err)
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, response.Body)
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("management API: %s", response.Status)
	}
	return nil
}

// excerpt returns the lines of a log that explain why the broker did not start. These are the lines before RabbitMQ's
// message that it gives up, because only the trace of Erlang's shutdown follows. Without that message they are the last
// lines of the log.
func excerpt(log string) string {
	if reason, _, failed := strings.Cut(log, "BOOT FAILED"); failed {
		log = reason
	}
	return tail(log)
}

// tail returns the last lines of a log.
func tail(text string) string {
	all := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(all[max(0, len(all)-logLines):], "\n")
}

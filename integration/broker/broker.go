// Package broker finds or starts a RabbitMQ broker for the demo and the tests.
//
// It tries these sources in order: the URL in Options or in the environment variable AMQP_URL; a container, if Docker
// answers and an image is available or can be pulled; and a private node of an installed rabbitmq-server, in a
// temporary directory and on free ports. A broker that this package starts does not outlive the process, whether the
// process returns, is interrupted, panics or is killed.
package broker

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/rabbitdelay/rabbitdelay/integration/guard"
)

// A Source is a way to find or start a broker.
type Source string

// The sources, in the order in which they are tried.
const (
	Environment Source = "environment" // Options.URL or AMQP_URL
	Container   Source = "container"   // Docker
	Node        Source = "node"        // an installed rabbitmq-server
)

// Environment variables that Start reads.
const (
	EnvURL           = "AMQP_URL"                   // the broker to use
	EnvManagementURL = "RABBITDELAY_MANAGEMENT_URL" // the management API of the broker at AMQP_URL
	EnvSource        = "RABBITDELAY_START_BROKER"   // container or node: start this kind and no other
)

var (
	// ErrNoBroker is wrapped if no source has a broker. Its text explains how to provide one, and the wrapping error
	// says what was tried.
	ErrNoBroker = errors.New("no RabbitMQ broker: set AMQP_URL to a running broker," +
		" or start Docker and build the images with `make images`," +
		" or install the package rabbitmq-server")

	// ErrNotOurs is returned by methods that control a broker if Start did not start that broker.
	ErrNotOurs = errors.New("the broker at AMQP_URL was not started by this process, so it cannot be stopped or controlled")
)

// Options configures which broker Start finds or starts. The zero value accepts any broker.
type Options struct {
	// URL is the URL of a running broker. It takes precedence over everything else. Default: the environment variable
	// AMQP_URL.
	URL string

	// Version is the release line, such as "4.3" or "3.10". Default: the newest one available. It does not apply to a
	// URL.
	Version string

	// Source restricts the search to containers or to nodes. Default: the environment variable
	// RABBITDELAY_START_BROKER, or both if that is not set.
	Source Source

	// Verbose logs Docker's full error if there is no image.
	Verbose bool

	// Management enables the management plugin with its HTTP API.
	Management bool

	// Plugin enables the x-delayed-message exchange plugin. Call PluginAvailable first, because Start fails if the
	// plugin's file is missing.
	Plugin bool

	// Config is appended to the broker's rabbitmq.conf.
	Config string

	// Advanced is the broker's advanced.config, in Erlang terms, for settings that rabbitmq.conf does not support.
	Advanced string

	// Clock is how far the clock of a private node is ahead of the machine's clock; see [Broker.SetClock]. A container
	// always uses the machine's clock.
	Clock time.Duration

	// Durable makes the broker sync its data to the disk, as RabbitMQ does by default. Otherwise, if libeatmydata is
	// installed, the broker does not sync. Confirmed messages then survive the death of the broker's process, but not a
	// power failure of the machine.
	Durable bool

	// Dir is the directory in which a node's temporary directory is created. Default: os.TempDir.
	Dir string

	// Data is the directory of the broker's data, which Close keeps. Default: a directory that is removed with the
	// broker.
	Data string

	// Port is the port that the broker listens on. Default: a free port.
	Port int

	// Beside is another private node with which the new private node can form a cluster. The new node uses the same
	// cookie and the same epmd. Close it before the other node.
	Beside *Broker

	// Log receives one line that says which broker is used and why. Default: the line is discarded.
	Log func(line string)
}

// A Broker is a running RabbitMQ broker. Its methods are safe for concurrent use.
type Broker struct {
	url           string
	managementURL string
	version       string
	source        Source

	server server // nil for a broker that was not started here
	guard  *guard.Guard

	mu     sync.Mutex // serializes changes of the server's state
	closed bool
}

// server is a broker that Start has started. It keeps its data and its ports until remove is called.
type server interface {
	start(ctx context.Context) error // returns before the broker is ready
	stop(ctx context.Context) error  // graceful
	kill(ctx context.Context) error
	pause(ctx context.Context) error
	resume(ctx context.Context) error
	remove(ctx context.Context) error

	ctl(ctx context.Context, args []string) (string, error)
	ended(ctx context.Context) bool // reports whether the broker's process has ended
	processID(ctx context.Context) (int, error)
	log(ctx context.Context) string
}

// removal is the maximum time for cleanup in Close and in a failed Start.
const removal = time.Minute

// Start finds or starts a broker and returns when it accepts connections. The context applies only to starting, not to
// the life of the broker, so call Close when you no longer need it. The error wraps ErrNoBroker if no source has a
// broker.
func Start(ctx context.Context, o Options) (*Broker, error) {
	if o.Log == nil {
		o.Log = func(string) {}
	}
	if o.URL == "" {
		o.URL = os.Getenv(EnvURL)
	}
	if o.URL != "" {
		return use(ctx, o)
	}
	if o.Source == "" {
		o.Source = Source(os.Getenv(EnvSource))
	}
	switch o.Source {
	case "", Container, Node:
	default:
		return nil, fmt.Errorf("broker: %s is %q; want %q, %q or nothing", EnvSource, o.Source, Container, Node)
	}

	return search(ctx, o)
}

// use connects to a broker that is already running.
func use(ctx context.Context, o Options) (*Broker, error) {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	version, err := waitReady(ctx, o.URL, "", nil)
	if err != nil {
		return nil, fmt.Errorf("broker at %s: %w", redact(o.URL), err)
	}
	b := &Broker{url: o.URL, version: version, source: Environment, managementURL: os.Getenv(EnvManagementURL)}
	o.Log(fmt.Sprintf("broker: RabbitMQ %s at %s, because its URL was given", version, b.RedactedURL()))
	return b, nil
}

// search tries the sources in order. The logged line explains why sources were skipped, briefly or, with
// Options.Verbose, in full. If all sources were skipped, the error explains this in full.
func search(ctx context.Context, o Options) (*Broker, error) {
	var logged, passed []string
	for _, source := range []Source{Container, Node} {
		if o.Source != "" && o.Source != source {
			continue
		}
		b, why, err := startFrom(ctx, source, o)
		if err == nil {
			o.Log(fmt.Sprintf("broker: RabbitMQ %s at %s, %s", b.version, b.RedactedURL(), strings.Join(append(logged, why), "; ")))
			return b, nil
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("broker: %w: %w", ctx.Err(), err)
		}
		reason := fmt.Sprintf("no %s (%v)", source, err)
		passed = append(passed, reason)
		if source == Container && !o.Verbose {
			reason = brief(err)
		}
		logged = append(logged, reason)
	}
	return nil, fmt.Errorf("%w; tried: %s", ErrNoBroker, strings.Join(passed, "; "))
}

// startFrom starts a broker from one source and waits until it is ready.
func startFrom(ctx context.Context, source Source, o Options) (_ *Broker, why string, err error) {
	g, err := guard.New()
	if err != nil {
		return nil, "", err
	}
	b := &Broker{source: source, guard: g}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.Close())
		}
	}()

	// Another process may take a port after it was chosen and before it is used.
	for attempt := 0; ; attempt++ {
		var s server
		var where addresses
		if source == Container {
			s, where, why, err = newContainer(ctx, g, o)
		} else {
			s, where, why, err = newNode(g, o)
		}
		if err != nil {
			return nil, "", err
		}
		b.server = s
		b.url = "amqp://guest:guest@" + where.amqp + "/"
		b.managementURL = ""
		if where.management != "" {
			b.managementURL = "http://guest:guest@" + where.management
		}
		err = s.start(ctx)
		if err == nil {
			err = b.waitReady(ctx)
		}
		if err == nil {
			return b, why, nil
		}
		if attempt == 2 || !portTaken(err) {
			return nil, "", err
		}
		if removeErr := b.remove(); removeErr != nil {
			return nil, "", errors.Join(err, removeErr)
		}
	}
}

// URL returns the broker's URL with its password, such as
// amqp://guest:guest@127.0.0.1:5672/.
func (b *Broker) URL() string { return b.url }

// RedactedURL returns the broker's URL without its password, for display.
func (b *Broker) RedactedURL() string { return redact(b.url) }

// ManagementURL returns the URL of the management API with user and password, such as
// http://guest:guest@127.0.0.1:15672, or "" if there is none. For a broker at AMQP_URL it is the value of
// RABBITDELAY_MANAGEMENT_URL.
func (b *Broker) ManagementURL() string { return b.managementURL }

// Version returns the version that the broker reports to its clients, such as 4.3.6.
func (b *Broker) Version() string { return b.version }

// Line returns the release line of Version, such as 4.3.
func (b *Broker) Line() string { return line(b.version) }

// Source returns how the broker was found.
func (b *Broker) Source() Source { return b.source }

// Close stops the broker and removes its container or its directory. It does nothing if Start did not start the broker,
// or if it has already been called.
func (b *Broker) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || b.guard == nil {
		return nil
	}
	b.closed = true
	if err := b.remove(); err != nil {
		// Keep the guard running, because it tries again when the process ends.
		return fmt.Errorf("broker: cleanup was incomplete: %w", err)
	}
	return b.guard.Dismiss()
}

// remove removes the broker. It does not take a context, because it must also work after the caller's context has
// ended.
func (b *Broker) remove() error {
	if b.server == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), removal)
	defer cancel()
	err := b.server.remove(ctx)
	if err == nil {
		b.server = nil
	}
	return err
}

func redact(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		// The error may contain the password.
		return "(a URL that cannot be parsed)"
	}
	return u.Redacted()
}

// line returns the first two numbers of a version.
func line(version string) string {
	major, rest, _ := strings.Cut(version, ".")
	minor, _, _ := strings.Cut(rest, ".")
	if minor == "" {
		return major
	}
	return major + "." + minor
}

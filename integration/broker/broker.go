// Package broker finds or starts a RabbitMQ broker for the demo and the tests.
//
// It looks in this order: the URL that was given or the environment variable
// AMQP_URL; a container, when Docker answers and an image is there or can be
// pulled; a private node of an installed rabbitmq-server, in a temporary
// directory and on free ports. What it starts does not outlive the process,
// whether that returns, is interrupted, panics or is killed.
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

// A Source is where a broker comes from.
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
	// ErrNoBroker is wrapped when no source has a broker. Its text names the
	// ways to provide one; the error around it says what was tried.
	ErrNoBroker = errors.New("no RabbitMQ broker: set AMQP_URL to one that runs," +
		" or start Docker and build the images with `make images`," +
		" or install the package rabbitmq-server")

	// ErrNotOurs is returned by methods that control a broker which Start did
	// not start.
	ErrNotOurs = errors.New("the broker at AMQP_URL was not started here and is not controlled from here")
)

// Options say which broker is wanted. The zero value takes any.
type Options struct {
	// URL of a running broker. It wins over everything else. Default: the
	// environment variable AMQP_URL.
	URL string

	// Version is the release line wanted, such as "4.3" or "3.10". Default: the
	// newest that is there. It does not apply to a URL.
	Version string

	// Source restricts the search to containers or to nodes. Default: the
	// environment variable RABBITDELAY_START_BROKER, else both.
	Source Source

	// Verbose logs Docker's whole error where there is no image.
	Verbose bool

	// Management starts the management plugin with its HTTP API.
	Management bool

	// Plugin puts the x-delayed-message exchange plugin into the broker. Ask
	// PluginAvailable first: without the plugin's file Start fails.
	Plugin bool

	// Config is appended to the broker's rabbitmq.conf.
	Config string

	// Advanced is the broker's advanced.config, in Erlang terms, for what
	// rabbitmq.conf has no name for.
	Advanced string

	// Clock is by how much the clock of a private node is ahead of the machine's; see
	// [Broker.SetClock]. A container has the machine's.
	Clock time.Duration

	// Durable makes the broker wait for the disk, as it does by itself. Otherwise it does not
	// where libeatmydata is installed: what it confirmed outlives its process, but not the
	// machine's power.
	Durable bool

	// Dir is where the temporary directory of a node is made. Default:
	// os.TempDir.
	Dir string

	// Data is the directory of the broker's data, which is kept. Default: one that ends with
	// the broker.
	Data string

	// Port is where the broker listens. Default: a free one.
	Port int

	// Beside is a private node that a private node can form a cluster with: it goes by the same
	// cookie and epmd, and ends first.
	Beside *Broker

	// Log receives one line that says which broker is used and why. Default: it
	// is dropped.
	Log func(line string)
}

// A Broker is a RabbitMQ broker in use. Its methods are safe for concurrent
// use.
type Broker struct {
	url           string
	managementURL string
	version       string
	source        Source

	server server // nil for a broker that was not started here
	guard  *guard.Guard

	mu     sync.Mutex // serializes what changes the state of the server
	closed bool
}

// server is one broker of ours. Its data and its ports stay the same until
// remove.
type server interface {
	start(ctx context.Context) error // returns before the broker is ready
	stop(ctx context.Context) error  // orderly
	kill(ctx context.Context) error
	pause(ctx context.Context) error
	resume(ctx context.Context) error
	remove(ctx context.Context) error

	ctl(ctx context.Context, args []string) (string, error)
	ended(ctx context.Context) bool // the broker's process is gone
	log(ctx context.Context) string
}

// removal bounds how long Close and a failed Start take to clean up.
const removal = time.Minute

// Start finds or starts a broker and returns when it accepts connections. ctx
// bounds the start and not the life of the broker; call Close. It fails with
// an error that wraps ErrNoBroker when no source has one.
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

// use connects to a broker that runs already.
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

// search tries the sources in their order. The line that is logged says briefly, or in full with Options.Verbose, why a
// source was passed over. If all were, the error says so in full.
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

	// A port may be taken between its choice and its use.
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

// RedactedURL returns the broker's URL for people to read, without its
// password.
func (b *Broker) RedactedURL() string { return redact(b.url) }

// ManagementURL returns the URL of the management API with user and password,
// such as http://guest:guest@127.0.0.1:15672, or "" when there is none. For a
// broker at AMQP_URL it is what RABBITDELAY_MANAGEMENT_URL says.
func (b *Broker) ManagementURL() string { return b.managementURL }

// Version returns the version that the broker reports to its clients, such as
// 4.3.6.
func (b *Broker) Version() string { return b.version }

// Line returns the release line of Version, such as 4.3.
func (b *Broker) Line() string { return line(b.version) }

// Source returns where the broker comes from.
func (b *Broker) Source() Source { return b.source }

// Close ends the broker and removes its container or its directory. It does
// nothing to a broker that Start did not start, and nothing the second time.
func (b *Broker) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || b.guard == nil {
		return nil
	}
	b.closed = true
	if err := b.remove(); err != nil {
		// The guard stays on watch: it tries again when the process ends.
		return fmt.Errorf("broker: not all was removed: %w", err)
	}
	return b.guard.Dismiss()
}

// remove does not take a context: what was started is removed also when the
// caller's has ended.
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
		// The text of the error may hold the password.
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

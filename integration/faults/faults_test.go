package faults_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"
	_ "modernc.org/sqlite"

	"github.com/rabbitdelay/rabbitdelay/integration/broker"
	"github.com/rabbitdelay/rabbitdelay/integration/cluster"
	"github.com/rabbitdelay/rabbitdelay/integration/database"
	"github.com/rabbitdelay/rabbitdelay/integration/faults"
	"github.com/rabbitdelay/rabbitdelay/integration/servers"
	"github.com/rabbitdelay/rabbitdelay/integration/tier"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// `make faults` sets these flags.
var (
	duration  = flag.Duration("duration", 30*time.Second, "how long each run sends messages and injects faults")
	seed      = flag.Uint64("seed", earlySeed, "seed of the fault sequence")
	rate      = flag.Float64("rate", 150, "messages per second")
	tasks     = flag.Float64("tasks", 20, "tasks per second in TestFaults, in addition to the messages")
	on        = flag.String("on", "node,cluster", "brokers to run on, separated by commas: node, cluster (containers), nodes (three, without Docker)")
	strategy  = flag.String("strategy", "bucket", "bucket, ttl, plugin or native")
	lead      = flag.Duration("lead", 400*time.Millisecond, "how long before its due time a message from the second producer reaches a consumer; 0: no second producer")
	queueType = flag.String("queue-type", "quorum", "quorum or classic")
	version   = flag.String("version", "4.3", "RabbitMQ release line")
	databases = flag.String("database", string(database.PostgreSQL), "PostgreSQL, MariaDB, MySQL or SQLite")
	resend    = flag.Duration("dead-letter-timeout", 5*time.Second, "dead_letter_worker_publisher_confirm_timeout of the brokers; 0: their default of 3 min")
	settle    = flag.Duration("settle", 10*time.Minute, "maximum wait for the last effects")
	kinds     = flag.String("kinds", "", "kinds of faults, separated by commas; default: all kinds that the brokers support")
	asJSON    = flag.Bool("json", false, "print the ledger as one line of JSON for each run")
	out       = flag.String("out", "", "file to write the ledger to, as JSON")
	dir       = flag.String("dir", "", "directory for logs to keep; default: a temporary one")
)

// earlySeed is the seed of a sequence that starts with the most important faults, for short runs. Within half a minute,
// a consumer is killed between its commit and its acknowledgement, a consumer requeues its messages, connections are
// cut before an acknowledgement and before a confirm, and the broker, or the leader of a delay queue, is killed while
// the answer to a commit is lost.
const earlySeed = 2054

func TestMain(m *testing.M) {
	ran, err := faults.ConsumerMain()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if ran {
		return
	}
	code := tier.Run(m, tier.Plan{Nightly: []string{
		"TestClocksOfACluster", "TestDiskFull", "TestLayoutsChange/clock_to_hex_on_4.0", "TestPartitions", "TestPowerLoss", "TestUpgrade",
	}}, nil)
	if err := broker.CloseShared(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

func skipIfAsked(t *testing.T) {
	t.Helper()
	if testing.Short() || os.Getenv(servers.EnvSkip) == "1" {
		t.Skip("skipped: -short is set or " + servers.EnvSkip + " is 1")
	}
}

// advanced returns an advanced.config for the brokers, with additional settings. It shortens the time after which an
// at-least-once queue republishes a dead letter that was not confirmed, for example because the target was not up yet.
// With the default, every run would take at least three more minutes after its last fault.
func advanced(more ...string) string {
	if *resend != 0 {
		more = append(more, fmt.Sprintf("{dead_letter_worker_publisher_confirm_timeout, %d}", resend.Milliseconds()))
	}
	return fmt.Sprintf("[{rabbit, [%s]}].\n", strings.Join(more, ", "))
}

func directory(t *testing.T, name string) string {
	t.Helper()
	if *dir == "" {
		return t.TempDir()
	}
	return fmt.Sprintf("%s/%s-%d", *dir, name, time.Now().UnixNano())
}

// node starts a broker of one node that can be controlled.
func node(t *testing.T, o broker.Options) faults.Brokers {
	t.Helper()
	o.Log, o.Advanced = func(line string) { t.Log(line) }, advanced()
	b, err := broker.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	if b.Source() == broker.Environment {
		t.Skipf("skipped: the broker at %s is not ours to break", broker.EnvURL)
	}
	return faults.OneNode(b)
}

func threeNodes(t *testing.T, o cluster.Options) *cluster.Cluster {
	t.Helper()
	o.Log = func(line string) { t.Log(line) }
	c, err := cluster.Start(t.Context(), o)
	return started(t, c, err)
}

// withoutDocker starts three nodes of the installed server.
func withoutDocker(t *testing.T, o cluster.Options) *cluster.Nodes {
	t.Helper()
	o.Log = func(line string) { t.Log(line) }
	c, err := cluster.StartNodes(t.Context(), o)
	return started(t, c, err)
}

// started stops the cluster when the test ends. It skips the test if no cluster is available.
func started[C faults.Brokers](t *testing.T, c C, err error) C {
	t.Helper()
	if errors.Is(err, cluster.ErrUnavailable) {
		t.Skipf("skipped: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// mustBeSafe reports whether the design promises that no message is lost, which requires quorum queues with
// at-least-once dead-lettering.
func mustBeSafe(s faults.Strategy) bool { return s.QueueType == topology.Quorum && s.Name != "plugin" }

func run(t *testing.T, cfg faults.Config) *faults.Report {
	t.Helper()
	cfg.Dir = directory(t, cfg.Name)
	cfg.Log = func(line string) { t.Log(line) }
	cfg.Settle = *settle
	report, err := faults.Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	var table bytes.Buffer
	if err := faults.Print(&table, []*faults.Report{report}); err != nil {
		t.Fatal(err)
	}
	t.Logf("the ledger:\n%s", table.String())
	if !report.Verdict.Clean() {
		t.Logf("broken promises: %s", report.Verdict)
	}
	return report
}

// promised fails the test if the run broke a promise or tested nothing.
func promised(t *testing.T, r *faults.Report) {
	t.Helper()
	if !r.Verdict.Clean() {
		t.Errorf("seed %d: got %s, want a clean verdict", r.Seed, r.Verdict)
	}
	if r.Waiting+r.Parked+r.Dead > 0 {
		t.Errorf("seed %d: %d messages are waiting, %d are parked and %d are dead letters, want 0 of each", r.Seed, r.Waiting, r.Parked, r.Dead)
	}
	if r.Verdict.Acknowledged == 0 || len(r.Injected) == 0 {
		t.Errorf("seed %d: %d messages were acknowledged and %d faults injected, want more than 0 of both", r.Seed, r.Verdict.Acknowledged, len(r.Injected))
	}
	for _, f := range r.Injected {
		if f.Err != nil {
			t.Errorf("fault %s: injecting or healing it: %v", f.Fault, f.Err)
		}
	}
}

// TestFaults runs the workload under all faults, one after the other and mixed, on one node and on a cluster. It fails
// if a promise is broken with quorum queues, and only shows the verdict for other combinations. `make faults` runs it
// for longer.
func TestFaults(t *testing.T) {
	skipIfAsked(t)
	var reports []*faults.Report
	for place := range strings.SplitSeq(*on, ",") {
		t.Run(place, func(t *testing.T) {
			cfg := faults.Config{
				Strategy: faults.Strategy{Name: *strategy, QueueType: topology.QueueType(*queueType)}, Lead: *lead,
				Database: database.Kind(*databases), Seed: *seed, Duration: *duration, Rate: *rate, Tasks: *tasks,
			}
			if *kinds != "" {
				for k := range strings.SplitSeq(*kinds, ",") {
					cfg.Kinds = append(cfg.Kinds, faults.Kind(k))
				}
			}
			switch place {
			case "node":
				cfg.Name = "one node"
				cfg.Brokers = node(t, broker.Options{Version: *version, Plugin: *strategy == "plugin"})
			case "cluster":
				cfg.Name = "three nodes"
				cfg.Brokers = threeNodes(t, cluster.Options{Version: *version, Advanced: advanced()})
			case "nodes":
				cfg.Name = "three nodes"
				cfg.Brokers = withoutDocker(t, cluster.Options{Advanced: advanced()})
			default:
				t.Fatalf("-on contains %q, want node, cluster (containers), nodes (without Docker), or several separated by commas", place)
			}
			r := run(t, cfg)
			reports = append(reports, r)
			if mustBeSafe(cfg.Strategy) {
				promised(t, r)
			} else {
				t.Logf("no failure for broken promises, because %s on %s queues promises less; see docs/guarantees.md", cfg.Strategy.Name, cfg.Strategy.QueueType)
			}
		})
	}
	publish(t, reports)
}

// TestNativeFaults runs the native strategy under all faults, if a broker that delays until a given time is available.
func TestNativeFaults(t *testing.T) {
	skipIfAsked(t)
	line := delaysByInstant(t)
	promised(t, run(t, faults.Config{
		Name: "native", Brokers: node(t, broker.Options{Version: line}),
		Strategy: faults.Strategy{Name: "native", QueueType: topology.Quorum}, Seed: *seed, Duration: *duration, Rate: *rate,
	}))
}

// delaysByInstant returns the newest available release line. The test is skipped if its broker does not delay until a
// given time.
func delaysByInstant(t *testing.T) string {
	t.Helper()
	lines, err := broker.Versions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	newest := lines[len(lines)-1]
	b := broker.Shared(t, managed(newest))
	err = live.ProbeInstants(t.Context(), "faults-probe", func(context.Context) (*amqp.Connection, error) { return amqp.Dial(b.URL()) })
	if errors.Is(err, live.ErrInstantsIgnored) {
		t.Skipf("skipped: RabbitMQ %s does not delay messages until a given time; set %s to an image of one that does", b.Version(), broker.EnvNextImage)
	}
	if err != nil {
		t.Fatal(err)
	}
	return newest
}

// publish logs a table if there are several runs to compare, and writes the ledgers as JSON if requested.
func publish(t *testing.T, reports []*faults.Report) {
	t.Helper()
	if len(reports) > 1 {
		var table bytes.Buffer
		if err := faults.Print(&table, reports); err != nil {
			t.Fatal(err)
		}
		t.Logf("all ledgers:\n%s", table.String())
	}
	if *asJSON {
		for _, r := range reports {
			if err := json.NewEncoder(os.Stdout).Encode(r); err != nil {
				t.Fatal(err)
			}
		}
	}
	if *out != "" {
		text, err := json.MarshalIndent(reports, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(*out, append(text, '\n'), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

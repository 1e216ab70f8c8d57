package schedule

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
)

// crashEnv is the environment variable that makes a child process a consumer. It contains the broker's URL and the
// database file.
const crashEnv = "RABBITDELAY_TEST_CRASH"

func TestMain(m *testing.M) {
	if given := os.Getenv(crashEnv); given != "" {
		url, file, _ := strings.Cut(given, " ")
		if err := consumeUntilSettled(url, file); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// killed is the exit code of a process that was ended by a task.
const killed = 77

func openFile(file string) (*sql.DB, error) {
	return sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(180000)&_pragma=journal_mode(wal)&_txlock=immediate")
}

// consumeUntilSettled runs in the child process. It handles tasks until none is pending, or until one of them ends the
// process.
func consumeUntilSettled(url, file string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	db, err := openFile(file)
	if err != nil {
		return err
	}
	client, err := amqpx.Open(ctx, amqpx.Config{URL: url})
	if err != nil {
		return err
	}
	handle := Handler(db, func(ctx context.Context, tx *sql.Tx, d *amqpx.Delivery) error {
		if strings.HasPrefix(d.ID, "killer") {
			os.Exit(killed)
		}
		_, err := tx.ExecContext(ctx, "INSERT INTO effects (id) VALUES (?)", d.ID)
		return err
	})
	go func() { err = errors.Join(err, client.Consume(ctx, "q", handle)) }()
	for {
		var pending int
		if err := db.QueryRowContext(ctx, "SELECT COUNT(*) FROM rabbitdelay_tasks WHERE status = 'pending'").Scan(&pending); err != nil {
			return err
		}
		if pending == 0 {
			return client.Close(ctx) // after the last dead letter has been sent
		}
		<-time.After(20 * time.Millisecond)
	}
}

// A task that crashes its process fails when its attempts are used up. Tasks that are handled at the same time are not
// affected.
func TestTaskThatKillsItsProcess(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tasks.db")
	db, err := openFile(file)
	check(t, err)
	defer func() { _ = db.Close() }()
	check(t, Migrate(t.Context(), db))
	_, err = db.ExecContext(t.Context(), "CREATE TABLE effects (id TEXT)")
	check(t, err)
	srv := amqptest.NewServer(amqptest.Options{})
	defer srv.Close()
	url, err := srv.Listen()
	check(t, err)
	client, err := amqpx.Open(t.Context(), amqpx.Config{URL: url})
	check(t, err)
	defer func() { _ = client.Close(t.Context()) }()
	s, err := New(db, client, Config{})
	check(t, err)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	defer func() { stop(); check(t, <-done) }()

	const innocent = 30
	killers := []string{"killer 1", "killer 2"}
	var tasks []Task
	for i := range innocent {
		tasks = append(tasks, Task{ID: fmt.Sprintf("innocent %d", i), Queue: "q", DeliverAt: time.Now()})
		if i == innocent/2 {
			for _, id := range killers {
				tasks = append(tasks, Task{ID: id, Queue: "q", DeliverAt: time.Now()})
			}
		}
	}
	check(t, s.ScheduleBatch(t.Context(), NoTx, tasks))

	deaths := 0
	for ; deaths <= 20; deaths++ {
		child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
		child.Env = append(os.Environ(), crashEnv+"="+url+" "+file)
		out, err := child.CombinedOutput()
		if err == nil {
			break
		}
		if e, ok := errors.AsType[*exec.ExitError](err); !ok || e.ExitCode() != killed {
			t.Fatalf("the child: got %v\n%s, want exit code %v", err, out, killed)
		}
	}
	t.Logf("%d processes were killed", deaths)
	for _, id := range killers {
		got, err := s.Get(t.Context(), NoTx, id)
		check(t, err)
		if got.Status != StatusFailed || got.Attempts != 5 || !strings.Contains(got.LastError, "without an outcome") {
			t.Errorf(`task %s, after %d processes: got %s after %d attempts with the error %q, want %s after 5 attempts with "without an outcome"`, id, deaths, got.Status, got.Attempts, got.LastError, StatusFailed)
		}
	}
	// Each of the two tasks has a first delivery and five recorded attempts.
	if deaths > 2*6 {
		t.Errorf("%d processes were killed, want at most %d", deaths, 2*6)
	}
	rows, err := s.Count(t.Context(), NoTx, Filter{Status: StatusDone})
	check(t, err)
	var effects, distinct int
	check(t, db.QueryRowContext(t.Context(), "SELECT COUNT(*), COUNT(DISTINCT id) FROM effects").Scan(&effects, &distinct))
	if effects != innocent || distinct != innocent {
		t.Errorf("there are %d effects of %d different tasks, want one for each of the %d other tasks (%v)", effects, distinct, innocent, rows)
	}
	// Each of the two tasks has one dead letter, with two exceptions. A task has none if the other task killed the
	// process after the failure was recorded and before the dead letter was sent. It has two if the process was killed
	// before the delivery was acknowledged.
	q, _ := srv.Queue("q.dead")
	if len(q.Messages) == 0 || slices.ContainsFunc(q.Messages, func(m amqptest.Message) bool { return !slices.Contains(killers, m.MessageId) }) {
		t.Errorf("q.dead: got the dead letters %+v, want at least one, and only those of %q", q.Messages, killers)
	}
}

// Neither lost connections nor consumers that stop while the handler runs count as attempts of the task, however many
// there are.
func TestRedeliveriesAreNotAttempts(t *testing.T) {
	onSite(t, Config{}, func(_ *testing.T, s *site) {
		var cutOff int
		waits := func(ctx context.Context, _ *sql.Tx, d *amqpx.Delivery) error {
			if d.ID == "cut off" && cutOff < 10 {
				cutOff++
				<-ctx.Done()
				return ctx.Err()
			}
			<-time.After(time.Minute)
			return s.noted(nil)(ctx, nil, d)
		}
		consume := func() (stop func()) {
			return s.consume("q", Handler(s.db, waits), amqpx.WithConcurrency(1), amqpx.WithDrainTimeout(time.Second))
		}
		stop := consume()
		s.schedule(Task{ID: "cut off", Queue: "q", DeliverAt: time.Now()})
		for range 10 {
			after(10 * time.Second)
			stop()
			stop = consume()
		}
		after(2 * time.Minute)
		s.wantTask("cut off", StatusDone, 0)
		s.schedule(Task{ID: "connections lost", Queue: "q", DeliverAt: time.Now()})
		for range 10 {
			after(5 * time.Second)
			s.srv.CutConnections()
		}
		after(10 * time.Minute)
		stop()
		s.wantTask("connections lost", StatusDone, 0)
		if len(s.effects) != 2 || cutOff != 10 {
			s.Errorf("the handler had the effects %v and %d interrupted runs, want 2 effects and 10 interrupted runs", s.effects, cutOff)
		}
	})
}

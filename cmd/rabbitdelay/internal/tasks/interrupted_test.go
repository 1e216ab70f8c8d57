package tasks_test

import (
	"context"
	"strings"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/clitest"
	"github.com/rabbitdelay/rabbitdelay/config"
)

// Repeating an interrupted reschedule by a duration or to a delay from now would reschedule tasks twice. The command
// therefore prints how to resume it.
func TestInterruptedMove(t *testing.T) {
	t.Run("by", func(t *testing.T) { interruptMove(t, "--by 1h", "--after '", "'", "--by 1h --after ") })
	t.Run("delay", func(t *testing.T) { interruptMove(t, "--delay 2h", "--at '", "' instead of --delay", "--at ") })
}

// interruptMove interrupts a reschedule with the given flags after its first task, and continues it with the flags
// resume and the value that the command printed between before and behind.
func interruptMove(t *testing.T, flags, before, behind, resume string) {
	url := clitest.NewDB(t)
	for _, id := range []string{"a", "b"} {
		clitest.Expect(t, 0, "tasks", "add", "--id", id, "--queue", "q", "--delay", "1h", "--db", url)
	}
	db, _, err := config.OpenDB(config.URL(url))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	moved := func() (n int) {
		// Errors are ignored because the database may be busy; the query is repeated.
		_ = db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM rabbitdelay_tasks WHERE version = 2").Scan(&n)
		return n
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out, errs clitest.Buffer
	ended := make(chan int, 1)
	go func() {
		args := strings.Fields("tasks reschedule --all " + flags + " --yes --batch 1 --pause 1h --db " + url)
		ended <- clitest.RunTo(ctx, &out, &errs, args...)
	}()
	clitest.Await(t, "the first task is rescheduled", func() bool { return moved() > 0 })
	cancel()
	if code := <-ended; code != 130 {
		t.Errorf("exit code %d, want 130", code)
	}
	if !strings.HasPrefix(out.String(), "1 of 2 tasks rescheduled in ") {
		t.Errorf(`got the output %s, want it to begin with "1 of 2 tasks rescheduled in "`, out.String())
	}
	_, rest, _ := strings.Cut(errs.String(), "rabbitdelay: interrupted; to continue, run the same command with "+before)
	value, _, ok := strings.Cut(rest, behind+"; otherwise, tasks would be rescheduled twice\n")
	if !ok {
		t.Fatalf("got Stderr %s, want the command to continue in it", errs.String())
	}
	clitest.Expect(t, 0, strings.Fields("tasks reschedule --all --yes --db "+url+" "+resume+value)...)
	if n := moved(); n != 2 {
		t.Errorf("%d tasks were rescheduled once, want 2", n)
	}
}

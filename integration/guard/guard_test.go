//go:build unix

package guard

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/rabbitdelay/rabbitdelay/integration/servers"
)

// envChild makes the test binary start a process under a guard, print the process id, and wait to be killed.
const envChild = "RABBITDELAY_TEST_GUARD_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(envChild); dir != "" {
		child(dir)
		return
	}
	goleak.VerifyTestMain(m)
}

func child(dir string) {
	g, err := New()
	if err != nil {
		panic(err)
	}
	if err := g.Directory(dir); err != nil {
		panic(err)
	}
	p, err := g.Start(exec.Command("/bin/sh", "-c", "sleep 600 & sleep 600; wait"))
	if err != nil {
		panic(err)
	}
	// A process that has exited is not under the guard any more.
	short, err := g.Start(exec.Command("/bin/true"))
	if err != nil {
		panic(err)
	}
	if err := short.Wait(context.Background()); err != nil {
		panic(err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(p.pid); err != nil {
		panic(err)
	}
	select {}
}

// alive reports whether a process group has a running member. A process that has exited but was not reaped by its new
// parent does not count.
func alive(t *testing.T, group int) bool {
	t.Helper()
	if errors.Is(syscall.Kill(-group, 0), syscall.ESRCH) {
		return false
	}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	if len(stats) == 0 {
		return true // without /proc, zombies cannot be excluded
	}
	for _, path := range stats {
		content, err := os.ReadFile(path)
		if err != nil {
			continue // the process has just exited
		}
		var state string
		var parent, member int
		_, rest, _ := strings.Cut(string(content), ") ")
		if _, err := fmt.Sscan(rest, &state, &parent, &member); err != nil {
			t.Fatal(err)
		}
		if member == group && state != "Z" {
			return true
		}
	}
	return false
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.After(servers.Patience)
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for !holds() {
		select {
		case <-deadline:
			t.Fatalf("condition not met in time: %s", what)
		case <-ticker.C:
		}
	}
}

func TestKilledParent(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a name with 'quotes' and blanks")
	if err := os.MkdirAll(filepath.Join(dir, "inner"), 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envChild+"="+dir)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var group int
	if err := json.NewDecoder(bufio.NewReader(stdout)).Decode(&group); err != nil {
		t.Fatal(err)
	}
	if !alive(t, group) {
		t.Error("the process is not running while its parent is, want it running")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // returns an error, because the process was killed
	eventually(t, "no process in the group is running", func() bool { return !alive(t, group) })
	eventually(t, "the directory is deleted", func() bool {
		_, err := os.Lstat(dir)
		return errors.Is(err, os.ErrNotExist)
	})
}

func newGuard(t *testing.T) *Guard {
	t.Helper()
	g, err := New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Dismiss(); err != nil {
			t.Error(err)
		}
	})
	return g
}

func TestDismissCleansNothing(t *testing.T) {
	dir := t.TempDir()
	g := newGuard(t)
	if err := g.Directory(dir); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(g.Dismiss(), g.Dismiss()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Error(err)
	}
	if err := g.Directory(dir); !errors.Is(err, ErrDismissed) {
		t.Errorf("Directory after Dismiss: got error %v, want ErrDismissed", err)
	}
}

func TestProcess(t *testing.T) {
	g := newGuard(t)
	start := func(script string) *Process {
		t.Helper()
		p, err := g.Start(exec.Command("/bin/sh", "-c", script))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}

	var exit *exec.ExitError
	if err := start("exit 7").Wait(t.Context()); !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Errorf("Wait: got error %v, want an exec.ExitError with code 7", err)
	}

	p := start("sleep 600 & wait")
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "no process in the group is running", func() bool { return !alive(t, p.pid) })

	p = start("exec sleep 600")
	ctx, cancel := context.WithTimeout(t.Context(), servers.Patience)
	defer cancel()
	if err := p.Stop(ctx, syscall.SIGTERM); err != nil {
		t.Errorf("Stop returned %v, want nil", err)
	}

	p = start("trap '' TERM; echo; while :; do sleep 600; done")
	ctx, cancel = context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := p.Stop(ctx, syscall.SIGTERM); !errors.Is(err, context.DeadlineExceeded) && err != nil {
		t.Errorf("Stop of a process that ignores the signal: got %v, want nil or context.DeadlineExceeded", err)
	}
	eventually(t, "no process in the group is running", func() bool { return !alive(t, p.pid) })

	if _, err := g.Start(exec.Command("/no/such/program")); err != nil {
		t.Errorf("Start of a missing program returned %v, want no error", err)
	}
	if _, err := g.Start(exec.Command("no-such-program")); !errors.Is(err, exec.ErrNotFound) {
		t.Errorf("Start of a program that is not in PATH: got error %v, want exec.ErrNotFound", err)
	}
	withInput := exec.Command("/bin/cat")
	withInput.Stdin = strings.NewReader("x")
	if _, err := g.Start(withInput); err == nil {
		t.Error("Start of a command with standard input: got no error")
	}
}

// After a process has exited and its ID was released, the ID may soon belong to another process. The guard therefore
// sends no signals to released IDs, and releases the ID of a group's leader last.
func TestSignalsReachNoOtherProcess(t *testing.T) {
	if _, err := os.Stat("/proc/self"); err != nil {
		t.Skip("skipped: without /proc, the owner of a process id cannot be checked")
	}
	var mu sync.Mutex
	var strangers []string
	g := newGuard(t)
	g.kill = func(pid int, s syscall.Signal) error {
		number := max(pid, -pid)
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", number)); err != nil {
			mu.Lock()
			strangers = append(strangers, fmt.Sprintf("%d (%v)", pid, s))
			mu.Unlock()
		}
		return syscall.Kill(pid, s)
	}
	for _, script := range []string{"exit 0", "sleep 600 & exit 0", "exec sleep 600", "sleep 600 & wait"} {
		p, err := g.Start(exec.Command("/bin/sh", "-c", script))
		if err != nil {
			t.Fatalf("%s: %v", script, err)
		}
		if strings.HasSuffix(script, "exit 0") {
			<-p.Ended()
			eventually(t, "no process in the group is running", func() bool { return !alive(t, p.pid) })
		}
		ctx, cancel := context.WithTimeout(t.Context(), servers.Patience)
		if err := errors.Join(p.Stop(ctx, syscall.SIGTERM), p.Kill()); err != nil {
			t.Errorf("stopping %s: %v", script, err)
		}
		cancel()
		if err := errors.Join(p.Suspend(), p.Continue()); !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("%s: Suspend and Continue after its exit: got error %v, want os.ErrProcessDone", script, err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if len(strangers) > 0 {
		t.Errorf("signals were sent to the released process ids %v, want none", strangers)
	}
}

func TestOneLineOnly(t *testing.T) {
	g := newGuard(t)
	for _, name := range []string{"", "a\nforget 1", "a\x00b"} {
		if err := g.Container(name); err == nil {
			t.Errorf("Container(%q): got no error", name)
		}
	}
}

// Package binary builds the program rabbitdelay from this repository and runs it in separate processes, as users do.
package binary

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Result is the output and the exit code of one run of the program.
type Result struct {
	Code           int
	Stdout, Stderr string
}

func (r Result) String() string {
	return fmt.Sprintf("exit %d\nstandard output:\n%sstandard error:\n%s", r.Code, r.Stdout, r.Stderr)
}

// Lines returns the lines of standard output.
func (r Result) Lines() []string { return strings.Split(strings.TrimSuffix(r.Stdout, "\n"), "\n") }

// grace is how long an interrupted program may take to exit before it is killed.
const grace = 30 * time.Second

// Command returns a command that runs the program with args. When the context ends, the program is interrupted, as by
// Ctrl-C.
func Command(ctx context.Context, args ...string) (*exec.Cmd, error) {
	path, err := build()
	if err != nil {
		return nil, err
	}
	c := exec.CommandContext(ctx, path, args...)
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	c.WaitDelay = grace
	return c, nil
}

// Run runs the program with args and an empty standard input. A program that cannot be built or started has the exit
// code -1, and its error on standard error.
func Run(ctx context.Context, args ...string) Result {
	var out, errs bytes.Buffer
	c, err := Command(ctx, args...)
	if err == nil {
		c.Stdout, c.Stderr = &out, &errs
		err = c.Run()
	}
	if c == nil || c.ProcessState == nil {
		return Result{-1, "", err.Error()}
	}
	// If an interrupted program exits by itself, it has an exit code, although err is that of the context.
	return Result{c.ProcessState.ExitCode(), out.String(), errs.String()}
}

// build builds the program once per process. Processes that run at the same time build one after another, and those
// after the first find an up-to-date program.
var build = sync.OnceValues(func() (string, error) {
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	cache := filepath.Join(root, ".cache")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(filepath.Join(cache, "rabbitdelay.lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer func() { _ = lock.Close() }() // releases the lock
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	path := filepath.Join(cache, "rabbitdelay")
	fresh := path + ".new"
	c := exec.Command("go", "build", "-o", fresh, "./cmd/rabbitdelay")
	c.Dir = root
	c.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath") // the Makefile builds programs that need no C in the same way
	if out, err := c.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build ./cmd/rabbitdelay: %w\n%s", err, out)
	}
	return path, os.Rename(fresh, path) // in one step, because another process may be starting the program
})

// moduleRoot returns the folder of this module's go.mod, at or above the working directory.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for at := dir; ; at = filepath.Dir(at) {
		content, err := os.ReadFile(filepath.Join(at, "go.mod"))
		if err == nil && bytes.HasPrefix(content, []byte("module github.com/rabbitdelay/rabbitdelay\n")) {
			return at, nil
		}
		if at == filepath.Dir(at) {
			return "", fmt.Errorf("%s is not inside the repository of rabbitdelay", dir)
		}
	}
}

package operations_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/term"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/cli"
	"github.com/rabbitdelay/rabbitdelay/integration/binary"
	"github.com/rabbitdelay/rabbitdelay/integration/broker"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
)

// terminal opens a pseudo-terminal. Text that is written to keys arrives at stdin as if a user had typed it.
func terminal(t *testing.T) (keys, stdin *os.File) {
	t.Helper()
	keys, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("skipped: no pseudo-terminal: %v", err)
	}
	t.Cleanup(func() { _ = keys.Close() }) // the other end is already closed
	var n, unlocked uint32
	for request, value := range map[uintptr]*uint32{syscall.TIOCGPTN: &n, syscall.TIOCSPTLCK: &unlocked} {
		if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, keys.Fd(), request, uintptr(unsafe.Pointer(value))); errno != 0 {
			t.Fatalf("ioctl %#x of the pseudo-terminal: %v", request, errno)
		}
	}
	stdin, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stdin.Close() }) // nothing was written into it
	return keys, stdin
}

// On a terminal, destroy and discard ask for confirmation, and accept only the requested answer.
func TestCLIAsksOnATerminal(t *testing.T) {
	t.Parallel()
	v := suite.NewVhost(t, broker.Shared(t, broker.Options{Management: true}))
	file := filepath.Join(t.TempDir(), "delays.yaml")
	yaml := fmt.Appendf(nil, "broker: {management_url: %q}\ndelay: {bucket: {radices: [2], resolution: 1h}}\n", v.Mgmt.Endpoint())
	if err := os.WriteFile(file, yaml, 0o600); err != nil {
		t.Fatal(err)
	}
	answering := func(answer string, args ...string) suite.Ran {
		keys, stdin := terminal(t)
		if _, err := keys.WriteString(answer + "\n"); err != nil {
			t.Fatal(err)
		}
		var out, errs strings.Builder
		code := cli.Run(t.Context(), append(args, "-f", file, "--url", v.URL), stdin, &out, &errs)
		return suite.Ran{Result: binary.Result{Code: code, Stdout: out.String(), Stderr: errs.String()}}
	}
	if r := answering("", "apply"); r.Code != 0 {
		t.Fatalf("apply: got %v, want exit code 0", r)
	}
	suite.Publish(t, v, "delay.parked", 2)
	for _, answer := range []struct{ is, says string }{{"y", "no message was discarded"}, {"yes", "2 discarded"}} {
		r := answering(answer.is, "discard", "--parked", "--no-save")
		if !strings.Contains(r.Stderr, "Discard 2 of 2 messages in delay.parked for good? Type yes: ") || !strings.Contains(r.Stderr+r.Stdout, answer.says) {
			t.Errorf(`%q: got %s, want Stderr with "Discard 2 of 2 messages in delay.parked for good? Type yes: ", and an output with %q`,
				answer.is, r, answer.says)
		}
	}
	before := v.Objects(t)
	for _, no := range []string{"", "y", "n", "yes!"} {
		if r := answering(no, "destroy"); r.Code != 1 || !strings.Contains(r.Stderr, "Type yes: ") || !strings.Contains(r.Stderr, "nothing was deleted") {
			t.Errorf(`%q: got %s, want exit code 1, Stderr with "Type yes: " and Stderr with "nothing was deleted"`, no, r)
		}
	}
	suite.Publish(t, v, "delay.bucket.r2-1h.1h", 12)
	for _, no := range []string{"yes", "11"} {
		if r := answering(no, "destroy", "--force"); r.Code != 1 || !strings.Contains(r.Stderr, "Type the number of messages, 12, to confirm: ") {
			t.Errorf(`%q: got %s, want exit code 1 and Stderr with "Type the number of messages, 12, to confirm: "`, no, r)
		}
	}
	if after := v.Objects(t); !slices.Equal(before, after) {
		t.Errorf("after refused answers, the objects are %v, want %v as before", after, before)
	}
	if r := answering("12", "destroy", "--force"); r.Code != 0 || !strings.Contains(r.Stdout, "with 12 messages") || len(v.Objects(t)) != 0 {
		t.Errorf(`got %s and the objects %v, want exit code 0, Stdout with "with 12 messages" and no objects`, r, v.Objects(t))
	}
}

// After Ctrl-C at a password prompt, the terminal shows typed text again.
func TestCLIInterruptedPassword(t *testing.T) {
	t.Parallel()
	keys, stdin := terminal(t)
	modes := func() *term.State {
		s, err := term.GetState(int(stdin.Fd()))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	shown := modes()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan suite.Ran, 1)
	go func() {
		var out, errs strings.Builder
		code := cli.Run(ctx, []string{"users", "add", "anna", "--role", "viewer", "--users", filepath.Join(t.TempDir(), "users.yaml")}, stdin, &out, &errs)
		ended <- suite.Ran{Result: binary.Result{Code: code, Stdout: out.String(), Stderr: errs.String()}}
	}()
	suite.Eventually(t, "the terminal hides typed text", func() bool { return !reflect.DeepEqual(modes(), shown) })
	cancel()
	if r := <-ended; r.Code != 130 || r.Stderr != "Password: \nrabbitdelay: interrupted\n" {
		t.Errorf(`got %v, want exit code 130 and "Password: \nrabbitdelay: interrupted\n" as the errors`, r)
	}
	if got := modes(); !reflect.DeepEqual(got, shown) {
		t.Errorf("after Ctrl-C, the terminal's modes are %v, want %v as before", got, shown)
	}
	if _, err := keys.WriteString("\n"); err != nil { // unblocks the read of the password
		t.Error(err)
	}
}

// Package suite contains helpers for the tests on real servers: clients, virtual hosts, commands and waiting.
package suite

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/cli"
	"github.com/rabbitdelay/rabbitdelay/integration/broker"
	"github.com/rabbitdelay/rabbitdelay/integration/tier"
)

// cliEnv turns a test binary into the command rabbitdelay. Its value is the arguments, one per line.
const cliEnv = "RABBITDELAY_TEST_CLI"

// Main runs the tests of a package, stops the brokers and database servers that they share, and returns the exit code.
// In a process that [Command] started, it runs the command instead. The plan says which tier each test belongs to.
func Main(m *testing.M, plan tier.Plan) int {
	if args := os.Getenv(cliEnv); args != "" {
		return cli.Run(context.Background(), strings.Split(args, "\n"), os.Stdin, os.Stdout, os.Stderr)
	}
	code := tier.Run(m, plan, broker.Newest)
	if err := broker.CloseShared(); err != nil {
		fmt.Fprintln(os.Stderr, "closing brokers:", err)
		code = max(code, 1)
	}
	return code
}

// Command returns a command that runs rabbitdelay with args in a separate process, which a test can kill. The package's
// TestMain must call [Main].
func Command(ctx context.Context, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, os.Args[0])
	c.Env = append(os.Environ(), cliEnv+"="+strings.Join(args, "\n"))
	return c
}

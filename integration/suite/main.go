// Package suite is what the tests on real servers share: clients, vhosts, commands and waiting.
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

// cliEnv makes a test binary the command rabbitdelay. Its value is the arguments, a line each.
const cliEnv = "RABBITDELAY_TEST_CLI"

// Main runs the tests of a package, ends the brokers and database servers that they
// share, and returns the exit code. In a process of [Command] it runs the command. The plan says which of the
// tests belong to which tier.
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

// Command returns rabbitdelay with args as a process of its own, which a test can
// kill. The package's TestMain calls [Main].
func Command(ctx context.Context, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, os.Args[0])
	c.Env = append(os.Environ(), cliEnv+"="+strings.Join(args, "\n"))
	return c
}

// Command rabbitdelay plans and applies the topology for delayed messages on
// RabbitMQ, sends and consumes them, and demonstrates the whole.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/cli"
)

func main() {
	os.Exit(run())
}

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// After the first signal a second one ends the process at once.
	defer context.AfterFunc(ctx, stop)()
	return cli.Run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
}

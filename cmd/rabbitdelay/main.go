// Command rabbitdelay plans and applies the topology for delayed messages on RabbitMQ, sends and consumes messages,
// manages tasks, runs the relay and the console, and finds problems.
package main

import (
	"os"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/cli"
	"github.com/rabbitdelay/rabbitdelay/internal/program"
)

func main() { os.Exit(program.Main(cli.Run)) }

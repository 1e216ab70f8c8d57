// Command rabbitdelay plans and applies the topology for delayed messages on RabbitMQ, sends and consumes messages,
// and finds problems.
package main

import (
	"os"

	"github.com/rabbitdelay/rabbitdelay/cmd/internal/program"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/cli"
)

func main() { os.Exit(program.Main(cli.Run)) }

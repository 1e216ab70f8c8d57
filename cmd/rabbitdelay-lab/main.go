// Command rabbitdelay-lab demonstrates and measures rabbitdelay, on servers that it starts or on existing servers.
package main

import (
	"os"

	"github.com/rabbitdelay/rabbitdelay/cmd/internal/program"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay-lab/lab"
)

func main() { os.Exit(program.Main(lab.Run)) }

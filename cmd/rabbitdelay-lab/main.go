// Command rabbitdelay-lab shows and measures rabbitdelay on servers that it starts
// for that, or on those that it is given.
package main

import (
	"os"

	"github.com/rabbitdelay/rabbitdelay/cmd/internal/program"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay-lab/lab"
)

func main() { os.Exit(program.Main(lab.Run)) }

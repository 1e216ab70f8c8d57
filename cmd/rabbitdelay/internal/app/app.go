package app

import (
	"fmt"
	"math"
	"time"
	"unicode/utf8"

	"github.com/rabbitdelay/rabbitdelay/cmd/internal/program"
)

// Exit codes beside those of every program. The help of rabbitdelay has the table.
const (
	ExitToDo    = 2 // plan: there is something to do; requeue, plugin drain: messages stayed
	ExitUnseen  = 2 // doctor, status, trace, plugin status: not everything could be seen
	ExitTimeout = 3 // consume: fewer messages came than were wanted
)

// App is one run of rabbitdelay.
type App struct {
	*program.Program

	Version string // of this binary
}

// Seconds returns a duration as JSON has it, to the millisecond.
func Seconds(d time.Duration) float64 { return math.Round(d.Seconds()*1000) / 1000 }

// BodyText returns a body for people: its length unless it is text.
func BodyText(body []byte) string {
	if !utf8.Valid(body) {
		return fmt.Sprintf("(%d bytes)", len(body))
	}
	return string(body)
}

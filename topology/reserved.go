package topology

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// maxPrefix leaves room for the longest name that a strategy makes with a prefix.
const maxPrefix = 64

// CheckPrefix refuses a prefix from which no names of broker objects can be
// made: an empty one, one of more than 64 bytes, one that is not UTF-8, or one
// that begins with "amq.", which brokers reserve. The error is a *FieldError.
func CheckPrefix(prefix string) error {
	if prefix == "" || len(prefix) > maxPrefix || !utf8.ValidString(prefix) || strings.HasPrefix(prefix, "amq.") {
		return &FieldError{
			Field: "Prefix", Value: prefix,
			Want: fmt.Sprintf("UTF-8 text of 1 to %d bytes that does not begin with \"amq.\"", maxPrefix),
		}
	}
	return nil
}

// FieldError says which field of a Config is wrong, its value and its bound.
type FieldError struct {
	Of    string // whose field, e.g. "bucket"; may be empty
	Field string // the Go name, e.g. "Resolution"
	Value any
	Want  string // the bound
}

func (e *FieldError) Error() string {
	name := e.Field
	if e.Of != "" {
		name = e.Of + ": " + name
	}
	return fmt.Sprintf("%s is %s; it must be %s", name, e.Given(), e.Want)
}

// DestinationError says why no message can be delayed for a destination.
type DestinationError struct {
	Destination Destination
	Reason      string
}

func (e *DestinationError) Error() string {
	d := e.Destination
	if d.Queue != "" && d.Exchange == "" {
		return fmt.Sprintf("destination queue %q %s", d.Queue, e.Reason)
	}
	if d.Queue == "" {
		return fmt.Sprintf("destination exchange %q with routing key %q %s", d.Exchange, d.RoutingKey, e.Reason)
	}
	return fmt.Sprintf("destination queue %q, exchange %q %s", d.Queue, d.Exchange, e.Reason)
}

// Unwrap makes errors.Is(err, ErrDestination) true.
func (e *DestinationError) Unwrap() error { return ErrDestination }

// Check refuses a destination that is none, is two at once, or is one of the
// objects that delay strategies with this prefix own: a message sent there
// would wait a second time, or go round for ever. The error is a
// *DestinationError.
func (d Destination) Check(prefix string) error {
	refuse := func(reason string) error { return &DestinationError{Destination: d, Reason: reason} }
	name := d.Queue
	switch {
	case d.Queue != "" && (d.Exchange != "" || d.RoutingKey != ""):
		return refuse("is a queue and an exchange at once; give either Queue, or Exchange and RoutingKey")
	case d.Queue == "" && d.Exchange == "" && d.RoutingKey == "":
		return refuse("is empty; give either Queue, or Exchange and RoutingKey")
	case d.Queue == "" && d.Exchange != "":
		name = d.Exchange
	case d.Queue == "": // the default exchange routes to the queue of that name
		name = d.RoutingKey
	}
	if Reserved(prefix, name) {
		return refuse(fmt.Sprintf("belongs to the delay strategies with prefix %q; choose another name or another prefix", prefix))
	}
	return nil
}

// Reserved tells whether a strategy with this prefix, or the delivery that all
// share, may create an object of that name.
func Reserved(prefix, name string) bool {
	rest, ok := strings.CutPrefix(name, prefix)
	if !ok || !strings.HasPrefix(rest, ".") {
		return false
	}
	word, _, _ := strings.Cut(rest[1:], ".")
	switch word {
	case "bucket", "ttl", "plugin", "deliver", "parked", "route", "lock", "declared":
		return true
	}
	return false
}

// Given is Value as a message shows it: text in quotes, durations as
// FormatDuration writes them.
func (e *FieldError) Given() string {
	switch v := e.Value.(type) {
	case string:
		return fmt.Sprintf("%q", clip(v))
	case time.Duration:
		return FormatDuration(v)
	}
	return fmt.Sprint(e.Value)
}

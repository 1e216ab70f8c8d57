package taskview

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Property is a property of a task's message whose value fits on one line. Commands have a flag for it, settings files
// a key, and the console an input field. All of them show it with a task.
type Property struct {
	Key     string // the key in files and in JSON, such as content_type
	Label   string // the console's name for it
	Example string // shown in the console's input while it is empty
	Help    string // the help text of its flag

	value func(t *schedule.Task) any // a pointer to the value: a string, a uint8 or a time.Duration
}

// Properties lists the properties of a task's message other than its destination, body, headers and tags. A new one
// needs a field in schedule.Task and an entry here. Its JSON form is in package asjson, and its columns are in package
// rows.
var Properties = []Property{
	{"content_type", "Content type", "application/json", "content type of the body", func(t *schedule.Task) any { return &t.ContentType }},
	{"type", "Type", "", "the message's type", func(t *schedule.Task) any { return &t.Type }},
	{"correlation_id", "Correlation ID", "", "the message's correlation id", func(t *schedule.Task) any { return &t.CorrelationID }},
	{"priority", "Priority", "0", "the message's priority, 0 to 255", func(t *schedule.Task) any { return &t.Priority }},
	{"expires_after", "Expires after", "30m", "how long after its due time a task expires; default: never", func(t *schedule.Task) any { return &t.ExpiresAfter }},
}

// Flag returns the name of the flag and of the console's input, such as content-type.
func (p Property) Flag() string { return strings.ReplaceAll(p.Key, "_", "-") }

// Words returns the name of the property in the output of commands, such as content type.
func (p Property) Words() string { return strings.ReplaceAll(p.Key, "_", " ") }

// Numeric reports whether the value is a number.
func (p Property) Numeric() bool {
	_, number := p.value(&schedule.Task{}).(*uint8)
	return number
}

// Of returns the value for a task as a string, or "" if it is not set.
func (p Property) Of(t schedule.Task) string {
	switch v := p.value(&t).(type) {
	case *uint8:
		if *v > 0 {
			return strconv.Itoa(int(*v))
		}
	case *time.Duration:
		if *v != 0 {
			return topology.FormatDuration(*v)
		}
	case *string:
		return *v
	}
	return ""
}

// Set sets the value for a task from a string in the format that Of returns. The empty string resets it.
func (p Property) Set(t *schedule.Task, text string) (err error) {
	switch v := p.value(t).(type) {
	case *uint8:
		n, err := strconv.ParseUint(cmp.Or(text, "0"), 10, 8)
		if err != nil {
			return fmt.Errorf("%.100q; expected a number from 0 to 255", text)
		}
		*v = uint8(n)
	case *time.Duration:
		*v, err = topology.ParseDuration(cmp.Or(text, "0"))
	case *string:
		*v = text
	}
	return err
}

// Type returns the word for the type of the value in the help text of a flag.
func (p Property) Type() string {
	switch p.value(&schedule.Task{}).(type) {
	case *uint8:
		return "uint8"
	case *time.Duration:
		return "duration"
	}
	return "string"
}

package live

import (
	"errors"
	"regexp"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/topology/argument"
)

// inequivalent takes the broker's text apart that says why an object exists
// with another argument. The text is cut at 255 bytes, so its end may be missing.
var (
	inequivalent = regexp.MustCompile(`inequivalent arg '([^']+)' for (?:queue|exchange) '`)
	receivedText = regexp.MustCompile(`': received (.*) but current is (.*)$`)
	typedValue   = regexp.MustCompile(`^the value '(.*)' of type '(\w+)'$`)
	plainValue   = regexp.MustCompile(`^'(.*)'$`)
)

// brokerText is a value as the broker wrote it.
type brokerText string

// parseInequivalent reads a Mismatch from the error of a declaration; wanted is
// the table that was declared.
func parseInequivalent(err error, wanted map[string]any) (argument.Mismatch, bool) {
	var e *amqp.Error
	if !errors.As(err, &e) || e.Code != amqp.PreconditionFailed {
		return argument.Mismatch{}, false
	}
	arg := inequivalent.FindStringSubmatch(e.Reason)
	if arg == nil {
		return argument.Mismatch{}, false
	}
	m := argument.Mismatch{Argument: arg[1], Have: brokerText("another value")}
	if values := receivedText.FindStringSubmatch(e.Reason); values != nil {
		m.Want, m.Have = brokerValue(values[1]), brokerValue(values[2])
	}
	if m.Argument == "type" { // of an exchange; the other properties are booleans
		if w, ok := m.Want.(brokerText); ok {
			m.Want = string(w)
		}
		if h, ok := m.Have.(brokerText); ok {
			m.Have = string(h)
		}
	}
	if w, ok := wanted[m.Argument]; ok {
		m.Want = w
		if _, isText := w.(string); !isText {
			return m, true
		}
		if h, ok := m.Have.(brokerText); ok && receivedText.MatchString(e.Reason) {
			m.Have = string(h)
		}
	}
	return m, true
}

func brokerValue(text string) any {
	if text == "none" {
		return nil
	}
	if typed := typedValue.FindStringSubmatch(text); typed != nil {
		if typed[2] == "longstr" {
			return typed[1]
		}
		return brokerText(typed[1])
	}
	if plain := plainValue.FindStringSubmatch(text); plain != nil {
		return brokerText(plain[1])
	}
	return brokerText(text)
}

package rabbit

import (
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Error is an AMQP error with RabbitMQ's text. A soft error closes the channel, and any other error closes the
// connection.
type Error struct {
	Code int
	Text string // e.g. "NOT_FOUND - no queue 'q' in vhost '/'"
}

func (e *Error) Error() string { return e.Text }

// Soft reports whether the error closes only the channel.
func (e *Error) Soft() bool {
	switch e.Code {
	case amqp.ContentTooLarge, amqp.NoRoute, amqp.NoConsumers, amqp.AccessRefused, amqp.NotFound, amqp.ResourceLocked, amqp.PreconditionFailed:
		return true
	}
	return false
}

// codeNames maps each code to the name at the beginning of its text.
var codeNames = map[int]string{
	amqp.ContentTooLarge:    "CONTENT_TOO_LARGE",
	amqp.NoRoute:            "NO_ROUTE",
	amqp.NoConsumers:        "NO_CONSUMERS",
	amqp.ConnectionForced:   "CONNECTION_FORCED",
	amqp.InvalidPath:        "INVALID_PATH",
	amqp.AccessRefused:      "ACCESS_REFUSED",
	amqp.NotFound:           "NOT_FOUND",
	amqp.ResourceLocked:     "RESOURCE_LOCKED",
	amqp.PreconditionFailed: "PRECONDITION_FAILED",
	amqp.FrameError:         "FRAME_ERROR",
	amqp.SyntaxError:        "SYNTAX_ERROR",
	amqp.CommandInvalid:     "COMMAND_INVALID",
	amqp.ChannelError:       "CHANNEL_ERROR",
	amqp.UnexpectedFrame:    "UNEXPECTED_FRAME",
	amqp.ResourceError:      "RESOURCE_ERROR",
	amqp.NotAllowed:         "NOT_ALLOWED",
	amqp.NotImplemented:     "NOT_IMPLEMENTED",
	amqp.InternalError:      "INTERNAL_ERROR",
}

// Refusal returns an Error whose text begins with the name of its code.
func Refusal(code int, format string, args ...any) *Error {
	text := fmt.Sprintf(format, args...)
	if name := codeNames[code]; name != "" {
		text = name + " - " + text
	}
	if len(text) > maxText {
		text = text[:maxText-len("...")] + "..."
	}
	return &Error{Code: code, Text: text}
}

// maxText is the maximum length of a reply text in bytes.
const maxText = 255

// deprecated returns the error for a feature that RabbitMQ 4.3 no longer permits.
func deprecated(feature string) *Error {
	return Refusal(amqp.InternalError, "Feature `%s` is deprecated.\nBy default, this feature is not permitted anymore.\n"+
		"The feature will be removed from a future major RabbitMQ version, regardless of the configuration; actual version to be determined.\n"+
		"To continue using this feature when it is not permitted by default, set the following parameter in your configuration:", feature)
}

func missing(kind, name, vhost string) *Error {
	return Refusal(amqp.NotFound, "no %s '%s' in vhost '%s'", kind, name, vhost)
}

func precondition(format string, args ...any) *Error {
	return Refusal(amqp.PreconditionFailed, format, args...)
}

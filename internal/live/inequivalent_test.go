package live

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/internal/argument"
	"github.com/rabbitdelay/rabbitdelay/internal/channels"
)

// The keys of the map are the reasons that RabbitMQ 3.10, 4.0 and 4.3 give for refusing a declaration.
func TestInequivalentArgumentsAreRead(t *testing.T) {
	wanted := map[string]any{
		argument.MessageTTL: int64(61000), argument.QueueType: "quorum", argument.DeadLetterExchange: "it's 'x'",
		argument.SingleActiveConsumer: true,
	}
	for text, want := range map[string]string{
		"inequivalent arg 'x-message-ttl' for queue 'q' in vhost '/': received '61000' but current is '60000'":                                           "x-message-ttl: wanted 61000, found 60000",
		"inequivalent arg 'x-message-ttl' for queue 'q' in vhost '/': received the value '61000' of type 'long' but current is none":                     "x-message-ttl: wanted 61000, found none",
		"inequivalent arg 'x-overflow' for queue 'q' in vhost '/': received none but current is the value 'drop-head' of type 'longstr'":                 `x-overflow: wanted none, found "drop-head"`,
		"inequivalent arg 'x-max-length' for queue 'q' in vhost '/': received none but current is the value '5' of type 'long'":                          "x-max-length: wanted none, found 5",
		"inequivalent arg 'x-queue-type' for queue 'p.plain' in vhost '/': received 'quorum' but current is 'classic'":                                   `x-queue-type: wanted "quorum", found "classic"`,
		"inequivalent arg 'x-queue-type' for queue 'q' in vhost '/': received the value 'quorum' of type 'longstr' but current is none":                  `x-queue-type: wanted "quorum", found none`,
		"inequivalent arg 'durable' for queue 'q' in vhost '/': received 'true' but current is 'false'":                                                  "durable: wanted true, found false",
		"inequivalent arg 'type' for exchange 'e' in vhost '/': received 'direct' but current is 'topic'":                                                `type: wanted "direct", found "topic"`,
		"inequivalent arg 'x-dead-letter-exchange' for queue 'p.it's' in vhost '/': received the value 'it's 'x'' of type 'longstr' but current is none": `x-dead-letter-exchange: wanted "it's 'x'", found none`,
		"inequivalent arg 'x-dead-letter-exchange' for queue '" + strings.Repeat("n", 180):                                                               `x-dead-letter-exchange: wanted "it's 'x'", found another value`,
		"inequivalent arg 'x-single-active-consumer' for queue 'q' in vhost '/': received the value 'true' of type 'bool' but current is none":           "x-single-active-consumer: wanted true, found none",
		"inequivalent arg 'x-message-ttl' for queue ' but current is ' in vhost '/': received the value '61000' of type 'long' but current is none":      "x-message-ttl: wanted 61000, found none",
	} {
		err := fmt.Errorf("wrapped: %w", &amqp.Error{Code: amqp.PreconditionFailed, Reason: "PRECONDITION_FAILED - " + text})
		m, ok := channels.Inequivalent(err, wanted)
		if !ok || m.String() != want {
			t.Errorf("%s\ngot  %s, %t\nwant %s, true", text, m, ok, want)
		}
	}
	for _, err := range []error{
		nil, errors.New("inequivalent arg 'a' for queue 'q'"),
		&amqp.Error{Code: amqp.NotFound, Reason: "inequivalent arg 'a' for queue 'q'"},
		&amqp.Error{
			Code:   amqp.PreconditionFailed,
			Reason: "PRECONDITION_FAILED - invalid arg 'x-max-priority' for queue 'q' in vhost '/' of queue type rabbit_quorum_queue",
		},
	} {
		if m, ok := channels.Inequivalent(err, wanted); ok {
			t.Errorf("the error %v was parsed as the mismatch %s, want none", err, m)
		}
	}
}

func FuzzInequivalent(f *testing.F) {
	f.Add("inequivalent arg 'x-message-ttl' for queue 'q' in vhost '/': received '61000' but current is '60000'")
	f.Add("inequivalent arg '")
	f.Fuzz(func(t *testing.T, reason string) {
		m, ok := channels.Inequivalent(&amqp.Error{Code: amqp.PreconditionFailed, Reason: reason}, map[string]any{argument.MessageTTL: 1})
		if ok && (m.Argument == "" || m.String() == "") {
			t.Errorf("the text %q was parsed as %+v, want an argument and a text", reason, m)
		}
	})
}

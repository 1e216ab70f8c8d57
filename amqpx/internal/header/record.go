package header

import (
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/internal/naming"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Limits for the record of failures: bytes of the last error, bytes of one attempt, and the number of attempts.
const (
	maxErrorText   = 1024
	maxAttemptText = 300
	maxAttemptLog  = 32
)

// Record copies the headers that describe the message's earlier attempts, and the carried properties, to the table own.
// It also writes the number of snoozes.
func (p *Properties) Record(own amqp.Table, snoozes int) {
	if snoozes > 0 {
		own[Snoozes] = int64(snoozes)
	}
	if at, ok := Integer(p.Headers, Requeued); ok {
		own[Requeued] = at
	}
	if list := FailedAttempts(p.Headers); len(list) > 0 {
		own[Attempts] = list
	}
	if s, ok := p.Headers[Error].(string); ok {
		own[Error] = cut(s, maxErrorText)
	}
	p.Carry(own)
}

// RecordFailure adds a failed attempt to the table own, with the current time and the error text.
func RecordFailure(own amqp.Table, text string) {
	list := append(FailedAttempts(own), cut(time.Now().UTC().Format(time.RFC3339Nano)+" "+text, maxAttemptText))
	own[Attempts] = list[max(0, len(list)-maxAttemptLog):]
	own[Error] = cut(text, maxErrorText)
}

// FailedAttempts returns the record of failed attempts. All elements are strings. Values of other types, which another
// publisher may have written, are left out because they might not be encodable.
func FailedAttempts(h amqp.Table) []any {
	old, _ := h[Attempts].([]any)
	list := make([]any, 0, len(old)+1)
	for _, a := range old {
		if s, ok := a.(string); ok {
			list = append(list, cut(s, maxAttemptText))
		}
	}
	return list[max(0, len(list)-maxAttemptLog):]
}

// cut shortens s to at most n bytes without splitting a UTF-8 character.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && s[n]&0xC0 == 0x80 {
		n--
	}
	return s[:n]
}

// Origin records in own, the headers of a retry or a dead letter, the exchange and the routing key to which the message
// was originally sent. It adds nothing if the message was sent to the queue itself.
func Origin(own amqp.Table, exchange, key string) {
	if exchange == "" {
		return
	}
	own[Exchange], own[RoutingKey] = exchange, key
	own[Destination] = topology.Destination{Exchange: exchange, RoutingKey: key}.String()
}

// SentTo returns the exchange and the routing key to which a message was originally sent. The parameters exchange and
// key are those with which it arrived in its queue. Messages that a strategy delivers, such as retries, arrive through
// one of rabbitdelay's exchanges with one of its keys. The headers of a retry have the exchange and the key of the
// first attempt. For a message that was sent to the queue itself, SentTo returns the default exchange and the queue's
// name.
func SentTo(prefix, exchange, key string, headers amqp.Table, queue string) (string, string) {
	if exchange != "" && !naming.Reserved(prefix, exchange) {
		return exchange, key
	}
	if exchange, _ = headers[Exchange].(string); exchange == "" {
		return "", queue
	}
	key, _ = headers[RoutingKey].(string)
	return exchange, key
}

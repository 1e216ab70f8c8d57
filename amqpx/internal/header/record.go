package header

import (
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/naming"
)

// Bounds of what is written about failures.
const (
	maxErrorText   = 1024
	maxAttemptText = 300
	maxAttemptLog  = 32
)

// Record adds the headers to own that tell what happened to the message before.
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

// RecordFailure adds an attempt to own that fails now, with a text.
func RecordFailure(own amqp.Table, text string) {
	list := append(FailedAttempts(own), cut(time.Now().UTC().Format(time.RFC3339Nano)+" "+text, maxAttemptText))
	own[Attempts] = list[max(0, len(list)-maxAttemptLog):]
	own[Error] = cut(text, maxErrorText)
}

// FailedAttempts returns the record of the failed attempts, strings all. Whatever else a
// foreign publisher wrote there is left out: it might not go over the wire again.
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

// cut shortens s to n bytes, at a character's boundary.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && s[n]&0xC0 == 0x80 {
		n--
	}
	return s[:n]
}

// Origin adds the headers of a retry or a dead letter to own that say where the message
// was sent to, unless that was the queue itself.
func Origin(own amqp.Table, exchange, key string) {
	if exchange == "" {
		return
	}
	own[Exchange], own[RoutingKey] = exchange, key
	own[Destination] = topology.Destination{Exchange: exchange, RoutingKey: key}.String()
}

// SentTo returns where a message was sent to that came to a queue through an exchange,
// with a routing key. What a strategy delivers, retries above all, comes through an
// exchange of ours and with a key of ours; a retry's headers then have the exchange
// and the key of the first attempt.
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

package clitest

import (
	"fmt"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.yaml.in/yaml/v3"

	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
)

// Host is the broker of a script: one in memory, or a real one that a test provides.
type Host interface {
	// URL returns the URL at which the program reaches the broker.
	URL() string
	// Connect opens a connection that does not belong to the program, as another client would.
	Connect() (*amqp.Connection, error)
	// Queues returns the names of all queues in alphabetical order.
	Queues() ([]string, error)
	// Describe describes a queue and its messages in one line.
	Describe(queue string) (string, error)
	// Scrub replaces the broker's version and virtual host in text with those of a broker in memory.
	Scrub(text string) string
	Close()
}

// Broker is an in-memory RabbitMQ that the program reaches at URL.
type Broker struct {
	*amqptest.Server

	URL string
}

// inMemory implements Host with a Broker.
type inMemory struct{ *Broker }

func (m inMemory) URL() string               { return m.Broker.URL }
func (m inMemory) Queues() ([]string, error) { return m.Broker.Queues(), nil }
func (m inMemory) Scrub(text string) string  { return text }

// Describe implements Host. It shows how many messages are ready, how many are unacknowledged, and how many a consumer
// has returned.
func (m inMemory) Describe(name string) (string, error) {
	q, ok := m.Queue(name)
	if !ok {
		return name + " does not exist", nil
	}
	line := fmt.Sprintf("%s %d ready", name, q.Ready)
	if q.Unacked > 0 {
		line += fmt.Sprintf(", %d not acknowledged", q.Unacked)
	}
	returned := 0
	for _, m := range q.Messages {
		if m.Headers["x-delivery-count"] != nil {
			returned++
		}
	}
	if returned > 0 {
		line += fmt.Sprintf(", %d returned", returned)
	}
	return line, nil
}

// NewBroker starts a broker that is closed when the test ends.
func NewBroker(t *testing.T, o amqptest.Options) *Broker {
	t.Helper()
	b, err := startBroker(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

func startBroker(o amqptest.Options) (*Broker, error) {
	srv := amqptest.NewServer(o)
	url, err := srv.Listen()
	if err != nil {
		srv.Close()
		return nil, err
	}
	return &Broker{srv, url}, nil
}

// Run runs the program in this process with the URL of the broker.
func (b *Broker) Run(t *testing.T, args ...string) Ran {
	t.Helper()
	return Run(t.Context(), append(args, "--url", b.URL)...)
}

// Channel returns a channel on a connection that does not belong to the program.
func (b *Broker) Channel(t *testing.T) *amqp.Channel {
	t.Helper()
	conn, err := b.Connect()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	return ch
}

// Fill declares a queue and publishes n messages to it.
func (b *Broker) Fill(t *testing.T, queue string, n int) {
	t.Helper()
	messages := make([]amqp.Publishing, n)
	for i := range messages {
		messages[i] = amqp.Publishing{MessageId: fmt.Sprint("m", i), Body: []byte("body")}
	}
	b.FillWith(t, queue, messages...)
}

// FillWith declares a queue and publishes messages to it.
func (b *Broker) FillWith(t *testing.T, queue string, messages ...amqp.Publishing) {
	t.Helper()
	if err := on(b, fill(queue, messages...)); err != nil {
		t.Fatal(err)
	}
}

// Ready returns the number of ready messages in a queue, and fails the test if any message is unacknowledged.
func (b *Broker) Ready(t *testing.T, queue string) int {
	t.Helper()
	q, ok := b.Queue(queue)
	if !ok {
		t.Errorf("the queue %s does not exist", queue)
	}
	if q.Unacked != 0 {
		t.Errorf("got %d unacknowledged messages in the queue %s, want 0", q.Unacked, queue)
	}
	return q.Ready
}

// on runs f with a channel on a connection that does not belong to the program.
func on(h interface {
	Connect() (*amqp.Connection, error)
}, f func(*amqp.Channel) error,
) error {
	conn, err := h.Connect()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	return f(ch)
}

// fill returns a function that declares a queue and publishes messages to it.
func fill(queue string, messages ...amqp.Publishing) func(*amqp.Channel) error {
	return func(ch *amqp.Channel) error {
		if _, err := ch.QueueDeclare(queue, true, false, false, false, amqp.Table{"x-queue-type": "quorum"}); err != nil {
			return err
		}
		return publish(ch, "", queue, messages)
	}
}

func publish(ch *amqp.Channel, exchange, key string, messages []amqp.Publishing) error {
	if err := ch.Confirm(false); err != nil {
		return err
	}
	for _, m := range messages {
		c, err := ch.PublishWithDeferredConfirm(exchange, key, exchange == "", false, m)
		if err != nil {
			return err
		}
		if !c.Wait() {
			return fmt.Errorf("the broker refused message %s", m.MessageId)
		}
	}
	return nil
}

// message is a message in a script's YAML file.
type message struct {
	ID          string         `yaml:"id"`
	Body        string         `yaml:"body"`
	ContentType string         `yaml:"content_type"`
	Type        string         `yaml:"type"`
	Headers     map[string]any `yaml:"headers"`
	// Count is the number of times that the message is published. In the texts of each copy, # is replaced by the copy's
	// index, starting at 0.
	Count int `yaml:"count"`
	// Unreadable adds a header that clients cannot decode.
	Unreadable bool `yaml:"unreadable"`
}

// decodeMessages decodes the YAML messages of a script.
func decodeMessages(text string) (list []amqp.Publishing, err error) {
	dec := yaml.NewDecoder(strings.NewReader(text))
	dec.KnownFields(true)
	var messages []message
	if err := dec.Decode(&messages); err != nil {
		return nil, err
	}
	for _, m := range messages {
		for i := range max(m.Count, 1) {
			number := func(s string) string { return s }
			if m.Count > 0 {
				number = func(s string) string { return strings.ReplaceAll(s, "#", fmt.Sprint(i)) }
			}
			headers, _ := amqpValue(m.Headers, number).(amqp.Table)
			if m.Unreadable {
				headers["ids"] = make([]any, 9000)
			}
			list = append(list, amqp.Publishing{
				MessageId: number(m.ID), Body: []byte(number(m.Body)), ContentType: m.ContentType, Type: m.Type, Headers: headers,
			})
		}
	}
	return list, nil
}

// amqpValue converts a YAML value to an AMQP value.
func amqpValue(v any, number func(string) string) any {
	switch v := v.(type) {
	case map[string]any:
		table := amqp.Table{}
		for key, x := range v {
			table[key] = amqpValue(x, number)
		}
		return table
	case []any:
		list := make([]any, len(v))
		for i, x := range v {
			list[i] = amqpValue(x, number)
		}
		return list
	case int:
		return int64(v)
	case string:
		return number(v)
	default:
		return v
	}
}

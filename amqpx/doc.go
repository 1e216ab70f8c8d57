// Package amqpx sends messages that RabbitMQ delivers later, and consumes them.
//
//	client, err := amqpx.Open(ctx, amqpx.Config{URL: "amqp://guest:guest@localhost:5672/"})
//	err = client.Send(ctx, amqpx.Message{Queue: "orders.expire", Delay: 30 * time.Minute, Body: body})
//	err = client.Consume(ctx, "orders.expire", func(ctx context.Context, d *amqpx.Delivery) error {
//		return expire(ctx, d.Body) // an error retries the message with a growing delay, and finally dead-letters it
//	})
//
// Open declares the broker objects that delays need, and reconnects whenever the connection is lost. Send returns when
// the broker has confirmed the message. A message may be delivered more than once. If a handler must take effect only
// once, wrap it with package idempotency, which records handled messages in the business database. Package schedule
// keeps whole tasks there, which can be cancelled and rescheduled.
//
// Config.Strategy decides how messages are delayed. The default, dlx.NewBucket, delays by up to 384 days on any
// RabbitMQ from 3.10.2. Package dlx also has a strategy with one queue for each declared delay, package plugin uses the
// x-delayed-message exchange, and NewAuto chooses among them by the delay.
//
// The error that a handler returns decides what happens to its message: see Handler, Reject, RetryIn, Snooze and
// Requeue. Stats, Health and Config.Hooks show how a client is doing. Package amqptest provides an in-memory broker for
// tests, and package service opens and runs everything that a configuration file describes.
package amqpx

// Files, from the public API down, for contributors to this package:
//
//   - client.go, close.go: opening and closing a Client
//   - config.go: its configuration, and the Strategy interface; auto.go: a strategy that selects another one
//   - errors.go: the errors of all calls
//   - message.go: Message
//   - send.go, batch.go: publishing messages and waiting for their confirms
//   - prepare.go, timing.go, content.go, headers.go, sizes.go: checking a message, and determining its route, due time
//     and published form
//   - consume.go, consume_options.go, pause.go: Consume, its options and pauses
//   - delivery.go: Delivery
//   - handlers.go, retry.go: handlers, middleware, and the errors by which a handler decides what happens to its
//     message
//   - handling.go: calling the hooks, the handler and the policies for one delivery
//   - hooks.go, stats.go, health.go, slog.go: observing a Client
//   - inner.go: the part of a Client that packages inspect and internal/consume use
//
// Package internal/wire keeps connections, internal/flow publishes on one, internal/declare makes sure that the objects
// that messages need exist on the broker, and internal/consume passes messages to their handlers and settles them. None
// of these packages imports amqpx. They build on the other packages in amqpx/internal and on those in the internal
// folder at the top of the module. Package inspect, for administrators, builds on amqpx.

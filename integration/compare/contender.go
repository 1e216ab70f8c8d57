package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"
)

// task is a unit of work that a contender executes when it is due.
type task struct {
	number int64
	due    time.Time
}

// payloadSize is the size of every task's payload in bytes.
const payloadSize = 256

// payload returns the task's payload. It is text, because some contenders keep it in JSON.
func (t task) payload() []byte {
	p := bytes.Repeat([]byte{'x'}, payloadSize)
	copy(p, fmt.Sprintf("%016d%016d", t.number, t.due.UnixMicro()))
	return p
}

// taskOf returns the task that a payload contains.
func taskOf(payload []byte) (task, error) {
	var number, due int64
	if _, err := fmt.Sscanf(string(payload[:min(32, len(payload))]), "%16d%16d", &number, &due); err != nil {
		return task{}, fmt.Errorf("payload %q: %w", payload, err)
	}
	return task{number, time.UnixMicro(due)}, nil
}

// execer runs a statement in the transaction in which a contender settles a task.
type execer func(ctx context.Context, query string, args ...any) error

// handler executes a task. The function in is nil if the contender has no database.
type handler func(ctx context.Context, payload []byte, in execer) error

// system is a contender that is ready to work. Its methods are safe for concurrent use.
type system interface {
	// schedule returns when the task is stored as safely as the contender stores tasks.
	schedule(ctx context.Context, t task) error
	// scheduleAll schedules up to batchSize tasks together, or returns errNoBatches.
	scheduleAll(ctx context.Context, list []task) error
	// run calls the handler for tasks that are due, until ctx ends.
	run(ctx context.Context, h handler) error
	// close removes what the contender has left on the servers.
	close(ctx context.Context) error
}

// Sizes that are the same for all contenders.
const (
	batchSize = 500
	writers   = 64  // goroutines that schedule
	workers   = 100 // handlers that run at the same time
)

var errNoBatches = errors.New("the contender has no batches")

// contender is a tool that executes tasks later, or one way to use that tool.
type contender struct {
	name   string
	keeper server // keeps the waiting tasks
	broker bool   // RabbitMQ delivers the tasks, even if another server keeps them
	// processors is how many processors the contender and its servers share in the workload starved.
	processors float64
	// connections is the size of the contender's pool of connections to PostgreSQL in the workload pools.
	connections int
	open        func(ctx context.Context, e *env) (system, error)
}

// uses reports whether the contender needs a server.
func (c contender) uses(s server) bool { return c.keeper == s || c.broker && s == rabbitMQ }

// Names of contenders.
const (
	byMessages = "rabbitdelay, messages"
	byExact    = "rabbitdelay, exact"
	bySQL      = "rabbitdelay, tasks (database/sql)"
	byPgx      = "rabbitdelay, tasks (pgx)"
	byTTL      = "TTL queues by hand, whole seconds"
	byRiver    = "River"
	byAsynq    = "asynq"
	bySet      = "Redis zset, polled every second"
	byTable    = "table, polled every second"
	byPlugin   = "x-delayed-message"

	byExactPgx = "rabbitdelay, tasks (pgx, exact)"
	quickRiver = "River, polls every 100 ms"
	quickAsynq = "asynq, forwards every second"
)

// contenders lists all contenders with their defaults.
func contenders() []contender {
	return []contender{
		{name: byMessages, keeper: rabbitMQ, open: openMessages},
		{name: byExact, keeper: rabbitMQ, open: openExact},
		{name: bySQL, keeper: postgreSQL, broker: true, open: openSQL},
		{name: byPgx, keeper: postgreSQL, broker: true, open: openPgx},
		{name: byTTL, keeper: rabbitMQ, open: openTTLQueues},
		{name: byRiver, keeper: postgreSQL, open: openRiver(0)},
		{name: byAsynq, keeper: redisServer, open: openAsynq(0)},
		{name: bySet, keeper: redisServer, open: openSet},
		{name: byTable, keeper: postgreSQL, open: openTable},
		{name: byPlugin, keeper: pluggedRabbitMQ, open: openPlugin},
	}
}

// tuned lists contenders with non-default settings: exact delivery or shorter polling intervals.
func tuned() []contender {
	return []contender{
		{name: byExactPgx, keeper: postgreSQL, broker: true, open: openExactPgx},
		{name: quickRiver, keeper: postgreSQL, open: openRiver(100 * time.Millisecond)},
		{name: quickAsynq, keeper: redisServer, open: openAsynq(time.Second)},
	}
}

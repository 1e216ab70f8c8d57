package bench

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

const (
	goodQueues = 10
	// backlog is how many overdue tasks each destination in trouble has.
	backlog = 3000
)

// besideTrouble measures how late tasks are whose destinations take their
// messages, without and beside destinations that do not. Tasks are due within a
// second: to later ones the relay could come late without anybody noticing.
func (r *run) besideTrouble(ctx context.Context, s *Scenario, c *client, db *sql.DB) error {
	f := flow{rate: float64(r.o.Rate), delays: span{0, time.Second}, warm: 5 * time.Second, measure: 30 * time.Second}
	if r.o.Quick {
		f.warm, f.measure = 2*time.Second, 5*time.Second
	}
	queues := make([]string, goodQueues)
	for i := range queues {
		var err error
		if queues[i], err = c.plain(fmt.Sprint("good-", i), r.o.QueueTypes[0]); err != nil {
			return err
		}
	}
	p := &passes{r: r, f: f, s: s, group: fmt.Sprintf("%.0f tasks/s for %d queues, due within a second", f.rate, goodQueues)}
	defer p.close()
	nothing := func(context.Context) error { return nil }
	alone := p.add("alone", true, &relayed{c: c, db: db, queues: queues}, nothing)
	beside := p.add(fmt.Sprintf("beside %d overdue tasks for each of a full, an exclusive and a missing destination", backlog), false,
		&relayed{c: c, db: db, queues: queues, beside: c.makeTrouble}, nothing)
	if err := p.run(ctx, r.o.Repeats); err != nil {
		return err
	}
	for _, metric := range []string{metricP50, metricP99} {
		s.ratio(metric+" of tasks beside bad destinations / alone", beside, alone, metric, 1.5, true)
	}
	return nil
}

// relayed keeps messages as tasks of several queues in turn.
type relayed struct {
	c      *client
	db     *sql.DB
	queues []string
	// beside, optional, begins what goes on at the same time; end ends it.
	beside func(ctx context.Context, store *schedule.Store) (end func() error, err error)

	store *schedule.Store
	kept  int
}

func (t *relayed) start(ctx context.Context, came func(content []byte, at time.Time)) (stop func() error, err error) {
	if t.store, err = schedule.New(t.db, t.c.Client, schedule.Config{}); err != nil {
		return nil, err
	}
	end := func() error { return nil }
	if t.beside != nil {
		if end, err = t.beside(ctx, t.store); err != nil {
			return nil, err
		}
	}
	running := len(t.queues) + 1
	ended := make(chan error, running)
	for _, q := range t.queues {
		go func() {
			ended <- t.c.Consume(ctx, q, func(_ context.Context, d *amqpx.Delivery) error {
				came(d.Body, time.Now())
				return nil
			}, amqpx.WithPrefetch(steadyPrefetch))
		}()
	}
	go func() { ended <- t.store.Run(ctx) }()
	return func() error {
		var errs []error
		for range running {
			errs = append(errs, <-ended)
		}
		errs = append(errs, end())
		_, err := t.db.ExecContext(context.WithoutCancel(ctx), "TRUNCATE rabbitdelay_tasks CASCADE")
		return errors.Join(append(errs, err, t.c.purge())...)
	}, nil
}

func (t *relayed) keep(ctx context.Context, list []kept) error {
	batch := make([]schedule.Task, len(list))
	for i, k := range list {
		batch[i] = schedule.Task{ID: uuid.NewString(), Queue: t.queues[t.kept%len(t.queues)], DeliverAt: k.due, Body: k.content}
		t.kept++
	}
	return t.store.ScheduleBatch(ctx, nil, batch)
}

// makeTrouble makes a queue that is full and one that belongs to another
// connection, and schedules overdue tasks to each of them and to an exchange that
// does not exist.
func (c *client) makeTrouble(ctx context.Context, store *schedule.Store) (end func() error, err error) {
	bad := []schedule.Task{{Queue: c.queue + ".full"}, {Queue: c.queue + ".exclusive"}, {Exchange: c.queue + ".missing"}}
	ch, err := c.conn.Channel()
	if err != nil {
		return nil, err
	}
	end = func() error {
		var errs []error
		for _, b := range bad {
			if b.Queue != "" {
				_, err := ch.QueueDelete(b.Queue, false, false, false)
				errs = append(errs, err)
			}
		}
		return errors.Join(append(errs, ch.Close())...)
	}
	if _, err = ch.QueueDeclare(bad[0].Queue, true, false, false, false, amqp.Table{"x-max-length": 1, "x-overflow": "reject-publish"}); err == nil {
		err = ch.PublishWithContext(ctx, "", bad[0].Queue, false, false, amqp.Publishing{})
	}
	if err == nil {
		_, err = ch.QueueDeclare(bad[1].Queue, false, false, true, false, nil)
	}
	var list []schedule.Task
	for i := range backlog {
		for _, b := range bad {
			b.ID, b.DeliverAt = fmt.Sprintf("%s%s-%d", b.Queue, b.Exchange, i), time.Now().Add(-time.Hour)
			list = append(list, b)
		}
	}
	if err == nil {
		err = store.ScheduleBatch(ctx, nil, list)
	}
	if err != nil {
		return nil, joined(err, end())
	}
	return end, nil
}

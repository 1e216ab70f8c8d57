package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

// bulk moves many tasks at once, and measures how late the relay is meanwhile with
// others.
func (r *run) bulk(ctx context.Context, s *Scenario) (err error) {
	db, err := r.database(ctx, s)
	if err != nil {
		return err
	}
	t := r.o.QueueTypes[0]
	c, err := r.open(ctx, r.main, "bulk", t, clock(t))
	if err != nil {
		return err
	}
	defer func() { err = joined(err, c.close(ctx)) }()
	f := flow{rate: float64(r.o.Rate), delays: span{0, time.Second}, warm: 2 * time.Second, measure: 20 * time.Second}
	if r.o.Quick {
		f.measure = 2 * time.Second
	}
	p := &passes{r: r, f: f, s: s, group: fmt.Sprintf("%.0f tasks/s, due within a second", f.rate)}
	defer p.close()
	nothing := func(context.Context) error { return nil }
	move := &mover{n: r.o.Pending, figures: s.find("a move by an hour", number(float64(r.o.Pending))+" tasks", false)}
	alone := p.add("alone", true, &relayed{c: c, db: db, queues: []string{c.queue}}, nothing)
	beside := p.add("beside the move", false, &relayed{c: c, db: db, queues: []string{c.queue}, beside: move.start}, nothing)
	if err := p.run(ctx, 1); err != nil {
		return err
	}
	s.ratio("p99 of tasks beside the move / alone", beside, alone, metricP99, 1.5, true)
	return nil
}

// mover moves many tasks.
type mover struct {
	n       int
	figures *Case
}

// start schedules the tasks, beyond the relay's horizon, and begins to move them. end
// waits until that is done.
func (m *mover) start(ctx context.Context, store *schedule.Store) (end func() error, err error) {
	for written := 0; written < m.n; {
		list := make([]schedule.Task, min(batchSize, m.n-written))
		for i := range list {
			list[i] = schedule.Task{ID: uuid.NewString(), Queue: "moved", DeliverAt: time.Now().Add(48*time.Hour + anyDelay(written+i))}
		}
		if err := store.ScheduleBatch(ctx, nil, list); err != nil {
			return nil, err
		}
		written += len(list)
	}
	ended := make(chan error, 1)
	go func() {
		began := time.Now()
		done, err := store.Bulk(context.WithoutCancel(ctx), schedule.Filter{Queue: "moved"}, schedule.BulkMoveBy(time.Hour), schedule.BulkOptions{})
		took := time.Since(began).Seconds()
		m.figures.add("took", "s", took)
		m.figures.add(metricRate, "tasks/s", float64(m.n)/took)
		m.figures.add("longest transaction", "ms", float64(done.Longest)/float64(time.Millisecond)) // no lock is held longer
		ended <- err
	}()
	return func() error { return <-ended }, nil
}

package schedule

import (
	"context"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
)

// work is a task whose handler runs, in the context of that handler. Its task is
// finished after the handler's function, or before that replaces it in the same
// transaction: a successor is no competitor, whose replacement would undo the effect.
type work struct {
	id       string
	finish   func(ctx context.Context, c sqldb.Conn) error
	finished bool
}

type workKey struct{}

// within returns the context of the handler's function.
func (w *work) within(ctx context.Context) context.Context {
	return context.WithValue(ctx, workKey{}, w)
}

// end finishes the task, once.
func (w *work) end(ctx context.Context, c sqldb.Conn) error {
	if w.finished {
		return nil
	}
	err := w.finish(ctx, c)
	w.finished = err == nil
	return err
}

// finishBefore finishes the task of the handler that replaces it in its transaction.
func finishBefore(ctx context.Context, c sqldb.Conn, tasks []Task) error {
	w, _ := ctx.Value(workKey{}).(*work)
	if _, outside := c.(sqldb.DB); w == nil || outside {
		return nil
	}
	for i := range tasks {
		if tasks[i].ID == w.id {
			return w.end(ctx, c)
		}
	}
	return nil
}

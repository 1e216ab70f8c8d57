package lab

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

// openPosts makes the tables of the posts' story.
func (s *store) openPosts(ctx context.Context) error {
	if err := schedule.Migrate(ctx, s.db); err != nil {
		return fmt.Errorf("database: %w", err)
	}
	if s.space == "" && s.dir == "" {
		var others int
		if err := s.db.QueryRowContext(ctx, "SELECT COUNT(*) FROM rabbitdelay_tasks WHERE status = 'pending'").Scan(&others); err != nil {
			return fmt.Errorf("database: %w", err)
		}
		if others > 0 {
			return fmt.Errorf("the database has %d pending tasks, which the demo's relay would send to the demo's broker, and no room of its own for the demo could be made in it; "+
				"give another database, a user that may create schemas or databases, or --story orders", others)
		}
	}
	for _, q := range []string{
		"CREATE TABLE " + s.posts + " (id VARCHAR(64) PRIMARY KEY, status VARCHAR(16) NOT NULL, due_ms BIGINT NOT NULL)",
		"CREATE TABLE " + s.published + " (post_id VARCHAR(64) NOT NULL, at_ms BIGINT NOT NULL)",
	} {
		if _, err := s.db.ExecContext(ctx, q); err != nil {
			return fmt.Errorf("database: %w", err)
		}
	}
	return nil
}

func (s *store) write(ctx context.Context, tx *sql.Tx, id string, due time.Time) error {
	_, err := tx.ExecContext(ctx, s.bind("INSERT INTO "+s.posts+" (id, status, due_ms) VALUES (?, 'scheduled', ?)"), id, due.UnixMilli())
	return err
}

func (s *store) movePost(ctx context.Context, tx *sql.Tx, id string, due time.Time, cancelled bool) error {
	status := "scheduled"
	if cancelled {
		status = "cancelled"
	}
	_, err := tx.ExecContext(ctx, s.bind("UPDATE "+s.posts+" SET status = ?, due_ms = ? WHERE id = ?"), status, due.UnixMilli(), id)
	return err
}

// publish is the effect of a message.
func (s *store) publish(ctx context.Context, tx *sql.Tx, id string, at time.Time) error {
	if _, err := tx.ExecContext(ctx, s.bind("UPDATE "+s.posts+" SET status = 'published' WHERE id = ?"), id); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, s.bind("INSERT INTO "+s.published+" (post_id, at_ms) VALUES (?, ?)"), id, at.UnixMilli())
	return err
}

// waiting counts the tasks that are still to happen.
func (s *store) waiting(ctx context.Context, queue string) (n int, err error) {
	err = s.db.QueryRowContext(ctx, s.bind("SELECT COUNT(*) FROM rabbitdelay_tasks WHERE queue = ? AND status = 'pending'"), queue).Scan(&n)
	return n, err
}

func (s *store) postFacts(ctx context.Context, queue string) (postFacts, error) {
	f := postFacts{states: map[string]string{}, tasks: map[string]schedule.Status{}, published: map[string][]int64{}}
	err := s.each(ctx, "SELECT id, status FROM "+s.posts, nil, func(rows *sql.Rows) error {
		var id, status string
		err := rows.Scan(&id, &status)
		f.states[id] = status
		return err
	})
	if err != nil {
		return f, err
	}
	err = s.each(ctx, "SELECT post_id, at_ms FROM "+s.published, nil, func(rows *sql.Rows) error {
		var id string
		var at int64
		err := rows.Scan(&id, &at)
		f.published[id] = append(f.published[id], at)
		return err
	})
	if err != nil {
		return f, err
	}
	err = s.each(ctx, "SELECT id, status FROM rabbitdelay_tasks WHERE queue = ?", []any{queue}, func(rows *sql.Rows) error {
		var id string
		var status schedule.Status
		err := rows.Scan(&id, &status)
		f.tasks[id] = status
		return err
	})
	return f, err
}

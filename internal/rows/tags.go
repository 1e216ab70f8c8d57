package rows

import (
	"context"
	"fmt"
	"strings"
)

// writeTags writes the tags of tasks that have just been written. With Replace, it first deletes the tags of the
// replaced tasks.
func (c Conn) writeTags(ctx context.Context, tasks []*Task, on OnExisting) error {
	var args []any
	for _, t := range tasks {
		for _, tag := range t.Tags {
			args = append(args, tag, t.ID)
		}
	}
	if on == Replace {
		_, err := c.exec(ctx, "DELETE FROM rabbitdelay_task_tags WHERE task_id IN ("+marks(len(tasks))+")", anys(ids(tasks))...)
		if err != nil {
			return fmt.Errorf("deleting tags: %w", err)
		}
	}
	for len(args) > 0 {
		n := min(len(args), 2*insertRows)
		query := "INSERT INTO rabbitdelay_task_tags (tag, task_id) VALUES (?, ?)" + strings.Repeat(", (?, ?)", n/2-1)
		if _, err := c.exec(ctx, query, args[:n]...); err != nil {
			return fmt.Errorf("writing tags: %w", err)
		}
		args = args[n:]
	}
	return nil
}

// readTags fills in the sorted tags of tasks.
func (c Conn) readTags(ctx context.Context, tasks []*Task) error {
	if len(tasks) == 0 {
		return nil
	}
	byID := make(map[string]*Task, len(tasks))
	for _, t := range tasks {
		byID[t.ID] = t
	}
	query := "SELECT task_id, tag FROM rabbitdelay_task_tags WHERE task_id IN (" + marks(len(tasks)) + ") ORDER BY task_id, tag"
	return c.each(ctx, query, anys(ids(tasks)), func(scan scanner) error {
		var id, tag string
		err := scan(&id, &tag)
		if t := byID[id]; t != nil {
			t.Tags = append(t.Tags, tag)
		}
		return err
	})
}

// TagNames returns the first tags in sort order. It uses the index to jump from each tag to the next. MySQL does that
// automatically for a GROUP BY.
func (c Conn) TagNames(ctx context.Context, limit int) ([]string, error) {
	if c.mysql() {
		return c.texts(ctx, "SELECT tag FROM rabbitdelay_task_tags GROUP BY tag ORDER BY tag LIMIT ?", limit)
	}
	return c.texts(ctx, "WITH RECURSIVE names (tag) AS (SELECT MIN(tag) FROM rabbitdelay_task_tags"+
		" UNION ALL SELECT (SELECT MIN(t.tag) FROM rabbitdelay_task_tags t WHERE t.tag > names.tag) FROM names WHERE names.tag IS NOT NULL)"+
		" SELECT tag FROM names WHERE tag IS NOT NULL LIMIT ?", limit)
}

package schedule

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
)

// Bounds of a task's tags.
const (
	maxTags = 20
	maxTag  = 100
)

func checkTags(t *Task) error {
	if len(t.Tags) > maxTags {
		return &TaskError{ID: t.ID, Field: "Tags", Reason: fmt.Sprintf("%d tags, expected at most %d", len(t.Tags), maxTags)}
	}
	seen := make(map[string]bool, len(t.Tags))
	for _, tag := range t.Tags {
		switch {
		case tag == "" || len(tag) > maxTag || !isText(tag) || strings.HasSuffix(tag, " "):
			return &TaskError{ID: t.ID, Field: "Tags", Reason: fmt.Sprintf("%q, expected 1 to %d bytes of UTF-8 without NUL that do not end in a space", tag, maxTag)}
		case seen[tag]:
			return &TaskError{ID: t.ID, Field: "Tags", Reason: fmt.Sprintf("%q is there twice", tag)}
		}
		seen[tag] = true
	}
	return nil
}

// writeTags gives tasks that have just been written their tags, in place of what
// they had when they replaced others.
func writeTags(ctx context.Context, c sqldb.Conn, d Dialect, tasks []Task, replace bool) error {
	var args []any
	ids := make([]any, len(tasks))
	for i := range tasks {
		ids[i] = tasks[i].ID
		for _, tag := range tasks[i].Tags {
			args = append(args, tag, tasks[i].ID)
		}
	}
	if replace {
		if err := deleteTags(ctx, c, d, ids); err != nil {
			return err
		}
	}
	for len(args) > 0 {
		n := min(len(args), 2*insertRows)
		query := "INSERT INTO rabbitdelay_task_tags (tag, task_id) VALUES (?, ?)" + strings.Repeat(", (?, ?)", n/2-1)
		if _, err := c.ExecContext(ctx, d.Bind(query), args[:n]...); err != nil {
			return fmt.Errorf("writing tags: %w", sqldb.Explain(err))
		}
		args = args[n:]
	}
	return nil
}

func deleteTags(ctx context.Context, c sqldb.Conn, d Dialect, ids []any) error {
	_, err := c.ExecContext(ctx, d.Bind("DELETE FROM rabbitdelay_task_tags WHERE task_id IN ("+marks(len(ids))+")"), ids...)
	if err != nil {
		return fmt.Errorf("deleting tags: %w", sqldb.Explain(err))
	}
	return nil
}

// readTags fills in the tags, in their order.
func readTags(ctx context.Context, c sqldb.Conn, d Dialect, tasks []*Task) error {
	if len(tasks) == 0 {
		return nil
	}
	byID := make(map[string]*Task, len(tasks))
	ids := make([]any, len(tasks))
	for i, t := range tasks {
		byID[t.ID], ids[i] = t, t.ID
	}
	rows, err := c.QueryContext(ctx, d.Bind("SELECT task_id, tag FROM rabbitdelay_task_tags WHERE task_id IN ("+marks(len(ids))+") ORDER BY task_id, tag"), ids...)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var id, tag string
		if err := rows.Scan(&id, &tag); err != nil {
			return err
		}
		if t := byID[id]; t != nil {
			t.Tags = append(t.Tags, tag)
		}
	}
	return rows.Err()
}

// whereHeader finds a header in the JSON as it is written here, and as programs
// write it that put a space after the colon.
func whereHeader(name, value string) (condition string, args []any, err error) {
	k, err := json.Marshal(name)
	if err != nil {
		return "", nil, err
	}
	v, err := json.Marshal(value)
	if err != nil {
		return "", nil, err
	}
	escape := strings.NewReplacer("~", "~~", "%", "~%", "_", "~_").Replace
	like := func(between string) string { return "%" + escape(string(k)+between+string(v)) + "%" }
	return "(headers LIKE ? ESCAPE '~' OR headers LIKE ? ESCAPE '~')", []any{like(":"), like(": ")}, nil
}

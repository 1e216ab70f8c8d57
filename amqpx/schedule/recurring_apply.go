package schedule

import (
	"context"
	"fmt"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
)

// OriginConfig is the Origin of what Apply wrote.
const OriginConfig = "config"

// Applied is what Apply did, by names.
type Applied struct {
	Created, Changed, Unchanged []string
	// Unlisted were applied earlier and are not in the list any more. They go on; to
	// end one, Pause or Delete it.
	Unlisted []string
}

// Apply puts a whole list, such as that of a configuration file, in one
// transaction. It deletes and pauses nothing, because another program may have a
// list of its own, and an older version of this one may still be running. Errors:
// *RecurringError.
func (x Schedules) Apply(ctx context.Context, ex Executor, list []Recurring) (Applied, error) {
	listed := map[string]bool{}
	for i := range list {
		r := &list[i]
		if err := x.check(r); err != nil {
			return Applied{}, err
		}
		if listed[r.Name] {
			return Applied{}, r.bad("Name", "is twice in one list")
		}
		listed[r.Name] = true
	}
	var done Applied
	err := x.within(ctx, ex, "applying recurring tasks", func(c sqldb.Conn, d Dialect) error {
		done = Applied{}
		for _, r := range list {
			r.Origin = OriginConfig
			change, err := x.put(ctx, c, d, r)
			if err != nil {
				return fmt.Errorf("%s: %w", of(r.Name), err)
			}
			names := map[Change]*[]string{Created: &done.Created, Changed: &done.Changed, Unchanged: &done.Unchanged}[change]
			*names = append(*names, r.Name)
		}
		var err error
		done.Unlisted, err = x.unlisted(ctx, c, d, listed)
		return err
	})
	return done, err
}

func (x Schedules) unlisted(ctx context.Context, c sqldb.Conn, d Dialect, listed map[string]bool) ([]string, error) {
	rows, err := c.QueryContext(ctx, d.Bind("SELECT name FROM rabbitdelay_schedules WHERE origin = ? ORDER BY name"), OriginConfig)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	var names []string
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, err
		}
		if !listed[name] {
			names = append(names, name)
		}
	}
	return names, rows.Err()
}

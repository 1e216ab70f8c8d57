package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/internal/lateness"
)

// entry is a line of the ledger. Its number is n or the result of the query, whichever is larger.
type entry struct {
	key, what string // the key in JSON, which is omitted if empty, and the description for people
	kind      kind
	n         int
	query     string
}

type kind bool

const (
	fact    kind = false
	promise kind = true // the number must be 0
)

func (o *orders) entries() []entry {
	_, early := o.late.Summary()
	return []entry{
		{"orders", "orders placed", fact, o.Orders, ""},
		{"paid", "paid in time", fact, 0, "SELECT COUNT(*) FROM orders WHERE status = 'paid'"},
		{"cancelled", "cancelled", fact, 0, "SELECT COUNT(*) FROM orders WHERE status = 'cancelled'"},
		{"early", "early", promise, early, "SELECT COUNT(*) FROM cancellations JOIN orders ON id = order_id WHERE at_ms < due_ms"},
		{"lost", "lost", promise, 0, fmt.Sprintf(`
			SELECT %d - COUNT(*) FROM orders JOIN rabbitdelay_processed ON message_id = id WHERE status <> 'unpaid'`, o.Orders)},
		{"duplicates_injected", "duplicates injected", fact, int(o.duplicates.Load()), ""},
		{"effects_twice", "effects committed twice", promise, 0, `
			SELECT COUNT(*) FROM (SELECT order_id FROM cancellations GROUP BY order_id HAVING COUNT(*) > 1) AS twice`},
		{"", "contradictory", promise, 0, `
			SELECT COUNT(*) FROM (SELECT id FROM orders UNION SELECT order_id FROM cancellations) AS x LEFT JOIN orders AS o ON o.id = x.id
			WHERE o.id IS NULL OR o.status = 'cancelled' AND o.paid_ms IS NOT NULL
			OR (o.status = 'cancelled') <> EXISTS (SELECT 1 FROM cancellations WHERE order_id = x.id)`},
	}
}

func (p *posts) entries() []entry {
	_, early := p.arrived.Summary()
	return []entry{
		{"scheduled", "posts scheduled", fact, int(p.scheduled.Load()), ""},
		{"rolled_back", "rolled back", fact, int(p.rolledBack.Load()), ""},
		{"moved", "moved", fact, 0, "SELECT COUNT(*) FROM posts WHERE moved = 1"},
		{"cancelled", "cancelled", fact, 0, "SELECT COUNT(*) FROM posts WHERE status = 'cancelled'"},
		{"run_early", "run early", fact, 0, "SELECT COUNT(*) FROM posts WHERE run_early = 1"},
		{"published", "published", fact, 0, "SELECT COUNT(DISTINCT post_id) FROM publications"},
		{"early", "early", promise, early, `
			SELECT COUNT(*) FROM publications JOIN posts ON id = post_id WHERE at_ms < due_ms AND status <> 'cancelled'`},
		{"lost", "lost", promise, 0, fmt.Sprintf(`
			SELECT %d - COUNT(*) FROM posts WHERE status = 'cancelled'
			OR EXISTS (SELECT 1 FROM publications WHERE post_id = id)`, p.scheduled.Load())},
		{"published_twice", "published twice", promise, 0, `
			SELECT COUNT(*) FROM (SELECT post_id FROM publications GROUP BY post_id HAVING COUNT(*) > 1) AS twice`},
		{"published_although_cancelled", "although cancelled", promise, 0, `
			SELECT COUNT(DISTINCT id) FROM publications JOIN posts ON id = post_id WHERE status = 'cancelled'`},
		{"", "contradictory", promise, 0, `
			SELECT COUNT(*) FROM (SELECT id FROM posts UNION SELECT id FROM rabbitdelay_tasks UNION SELECT post_id FROM publications) AS x
			LEFT JOIN posts AS p ON p.id = x.id LEFT JOIN rabbitdelay_tasks AS t ON t.id = x.id
			WHERE p.id IS NULL OR t.id IS NULL OR p.status = 'rolled back' OR (p.status = 'cancelled') <> (t.status = 'cancelled')
			OR (t.status = 'done') <> EXISTS (SELECT 1 FROM publications WHERE post_id = x.id)`},
		{"stale_stopped", "stopped: moved since", fact, int(p.stale.Load()), ""},
		{"cancelled_stopped", "stopped: cancelled since", fact, int(p.cancelled.Load()), ""},
		{"duplicates_stopped", "stopped: duplicates", fact, int(p.repeated.Load()), ""},
		{"changes_too_late", "changes that came late", fact, int(p.tooLate.Load()), ""},
	}
}

// showLedger compares the stories with the contents of the database. Its error lists the broken promises.
func (s *stage) showLedger(ctx context.Context) error {
	orders, broken := s.account(ctx, "orders", s.Orders, s.orders.entries(), &s.orders.late)
	posts, wrong := s.account(ctx, "posts", s.Posts, s.posts.entries(), &s.posts.published)
	if !s.JSON {
		s.Printf("\n  strategy %s, RabbitMQ %s, %s\n\n", s.strategy, s.version, s.dialect)
		return errors.Join(broken, wrong)
	}
	line := fmt.Sprintf(`{%s,"strategy":%q,"broker":%q,"database":%q`, orders, s.strategy, s.version, s.dialect)
	if s.Posts > 0 {
		line += `,"posts":{` + posts + "}"
	}
	return errors.Join(s.PrintJSON(json.RawMessage(line+"}")), broken, wrong)
}

// account counts the results of one story. It prints them for people, or returns them as the members of a JSON
// object.
func (s *stage) account(ctx context.Context, story string, told int, entries []entry, late *lateness.Record) (members string, err error) {
	var text, broken, list []string
	for _, e := range entries {
		if e.query != "" {
			var counted int
			if err := s.db.QueryRowContext(ctx, e.query).Scan(&counted); err != nil {
				return "", err
			}
			e.n = max(e.n, counted)
		}
		mark := ""
		if e.kind == promise {
			mark = "  ok"
		}
		if e.kind == promise && e.n > 0 {
			mark = "  WRONG"
			broken = append(broken, fmt.Sprintf("%d %s", e.n, e.what))
		}
		text = append(text, fmt.Sprintf("  %-24s %8d%s", e.what, e.n, mark))
		if e.key != "" {
			list = append(list, fmt.Sprintf("%q:%d", e.key, e.n))
		}
	}
	l, _ := late.Summary()
	if told > 0 && !s.JSON {
		s.Printf("\n%s\n  lateness p50 %d ms, p99 %d ms, max %d ms\n", strings.Join(text, "\n"), l.P50, l.P99, l.Max)
	}
	if len(broken) > 0 {
		err = fmt.Errorf("the guarantees for %s were broken: %s", story, strings.Join(broken, ", "))
	}
	list = append(list, fmt.Sprintf(`"lateness_ms":{"p50":%d,"p99":%d,"max":%d}`, l.P50, l.P99, l.Max))
	return strings.Join(list, ","), err
}

package config

import (
	"errors"
	"fmt"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/yamldoc"
)

// schedulesKey is the file's list of recurring tasks. Only the file can give it.
const schedulesKey = "schedules"

// schedule reads a recurring task. What the values mean together is checked when
// all are read.
func (f *file) schedule(n *yaml.Node, path string) {
	r := schedule.Recurring{}
	t := &r.Task
	before := len(f.Problems)
	f.Mapping(n, path, map[string]yamldoc.Field{
		"name":           f.textTo(&r.Name),
		"cron":           f.textTo(&r.Cron),
		"time_zone":      f.textTo(&r.TimeZone),
		"every":          f.parsed(func(s string) (err error) { r.Every, err = topology.ParseDuration(s); return err }),
		"start":          f.parsed(func(s string) (err error) { r.Start, err = parseInstant(s); return err }),
		"end":            f.parsed(func(s string) (err error) { r.End, err = parseInstant(s); return err }),
		"jitter":         f.parsed(func(s string) (err error) { r.Jitter, err = topology.ParseDuration(s); return err }),
		"misfire":        f.textTo((*string)(&r.Misfire)),
		"misfire_limit":  f.parsed(func(s string) (err error) { r.MisfireLimit, err = parseInt(s); return err }),
		"overlap":        f.textTo((*string)(&r.Overlap)),
		"queue":          f.textTo(&t.Queue),
		"exchange":       f.textTo(&t.Exchange),
		"routing_key":    f.textTo(&t.RoutingKey),
		"body":           f.parsed(func(s string) error { t.Body = []byte(s); return nil }),
		"content_type":   f.textTo(&t.ContentType),
		"type":           f.textTo(&t.Type),
		"correlation_id": f.textTo(&t.CorrelationID),
		"priority":       f.parsed(func(s string) (err error) { t.Priority, err = parsePriority(s); return err }),
		"expires_after":  f.parsed(func(s string) (err error) { t.ExpiresAfter, err = topology.ParseDuration(s); return err }),
		"headers":        f.headers(t),
		"tags":           func(n *yaml.Node, p string) { f.List(n, p, f.appendTo(&t.Tags)) },
	})
	f.schedules = append(f.schedules, r)
	if len(f.Problems) > before {
		return
	}
	bad := func(field, format string, args ...any) {
		at := path + "." + field
		place, ok := f.Places[at]
		if !ok {
			place = f.Places[path]
		}
		f.Problems.Addf(place, at, format, args...)
	}
	for _, err := range unjoined(r.Validate()) {
		se, ok := errors.AsType[*schedule.RecurringError](err)
		if !ok {
			continue
		}
		field := snake(se.Field)
		if se.Field == "CorrelationID" {
			field = "correlation_id"
		}
		bad(field, "%s", se.Reason)
	}
	for i := range f.schedules[:len(f.schedules)-1] {
		if f.schedules[i].Name == r.Name {
			bad("name", "%q is the name of schedules[%d] too", yamldoc.Clip(r.Name), i)
		}
	}
}

// parsed reads a single value.
func (f *file) parsed(read func(string) error) yamldoc.Field {
	return f.kind(yamldoc.Scalar, func(n *yaml.Node, path string) {
		if text, ok := f.text(n, path); ok {
			if err := read(text); err != nil {
				f.Failf(n, path, "%v", err)
			}
		}
	})
}

func (f *file) textTo(dst *string) yamldoc.Field {
	return f.parsed(func(s string) error { *dst = s; return nil })
}

func (f *file) appendTo(dst *[]string) yamldoc.Field {
	return f.parsed(func(s string) error { *dst = append(*dst, s); return nil })
}

func (f *file) headers(t *schedule.Task) yamldoc.Field {
	return f.kind(yamldoc.Table, func(n *yaml.Node, path string) {
		if n.Kind != yaml.MappingNode {
			f.Expected(n, path, "a mapping of names to texts")
			return
		}
		t.Headers = map[string]string{}
		f.Entries(n, path, func(key, value *yaml.Node, at string) {
			f.Value(value, at, f.parsed(func(s string) error { t.Headers[key.Value] = s; return nil }))
		})
	})
}

func parseInstant(s string) (time.Time, error) {
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return t, fmt.Errorf("expected an instant such as 2026-01-31T08:00:00Z, got %q", yamldoc.Clip(s))
	}
	return t, nil
}

func parsePriority(s string) (uint8, error) {
	n, err := parseInt(s)
	if err == nil && (n < 0 || n > 255) {
		err = fmt.Errorf("%d; expected 0 to 255", n)
	}
	return uint8(n), err
}

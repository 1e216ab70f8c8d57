package cli

import (
	"fmt"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// duration is a flag that reads what the YAML file reads, days included.
type duration time.Duration

func (d *duration) String() string { return topology.FormatDuration(time.Duration(*d)) }
func (d *duration) Type() string   { return "duration" }

func (d *duration) Set(s string) error {
	v, err := topology.ParseDuration(s)
	*d = duration(v)
	return err
}

// instant is a flag that reads what schedule.ParseInstant reads.
type instant time.Time

func (i *instant) String() string {
	if time.Time(*i).IsZero() {
		return ""
	}
	return time.Time(*i).Format(time.RFC3339Nano)
}

func (i *instant) Type() string { return "time" }

func (i *instant) Set(s string) error {
	t, err := schedule.ParseInstant(s, time.Now())
	*i = instant(t)
	return err
}

// parseHeaders reads key=value pairs as text headers.
func parseHeaders(pairs []string) (amqp.Table, error) {
	if len(pairs) == 0 {
		return nil, nil
	}
	t := amqp.Table{}
	for _, p := range pairs {
		k, v, ok := strings.Cut(p, "=")
		if !ok || k == "" {
			return nil, fmt.Errorf("--header: expected name=value, got %q", p)
		}
		t[k] = v
	}
	return t, nil
}

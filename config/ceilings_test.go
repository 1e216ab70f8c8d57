package config

import (
	"slices"
	"strings"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

func TestCeilings(t *testing.T) {
	c := mustLoad(t, `
broker: {url: 'amqp://h/'}
exchanges: [{name: events, type: topic}]
destinations:
- {queue: mail, ceiling: {per_second: 100, burst: 5}}
- {queue: plain}
- {exchange: events, routing_key: a}
- {exchange: events, routing_key: b, ceiling: {per_second: 0.5}}
`)
	want := []schedule.Ceiling{{Queue: "mail", PerSecond: 100, Burst: 5}, {Queue: "plain"}, {Exchange: "events", PerSecond: 0.5}}
	if got := c.Ceilings(); !slices.Equal(got, want) {
		t.Errorf("%+v, expected %+v", got, want)
	}
	for text, problem := range map[string]string{
		"[{queue: q, ceiling: {per_second: 0}}]":            "destinations[0].ceiling: expected per_second of one a day (0.0000116) to 100000",
		"[{queue: q, ceiling: {burst: 3}}]":                 "destinations[0].ceiling: expected per_second",
		"[{queue: q, ceiling: {per_second: 2, burst: 0}}]":  "destinations[0].ceiling.burst: expected 1 or more tasks at once, got 0",
		"[{queue: q, ceiling: {per_second: 2, burst: -1}}]": "destinations[0].ceiling: expected",
		"[{queue: q, ceiling: {per_minute: 2}}]":            "per_minute",
		"[{exchange: e, routing_key: a, ceiling: {per_second: 1}}, {exchange: e, routing_key: b, ceiling: {per_second: 2}}]": "destinations[1].ceiling: exchange \"e\" has another ceiling at destinations[0]",
	} {
		if _, err := load([]byte("destinations: "+text+"\n"), Source{}); err == nil || !strings.Contains(err.Error(), problem) {
			t.Errorf("%s: %v, expected %s", text, err, problem)
		}
	}
}

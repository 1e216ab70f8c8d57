package config

import (
	"slices"
	"strings"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

func TestRateLimits(t *testing.T) {
	c := mustLoad(t, `
broker: {url: 'amqp://h/'}
exchanges: [{name: events, type: topic}]
destinations:
- {queue: mail, rate_limit: {per_second: 100, burst: 5}}
- {queue: plain}
- {exchange: events, routing_key: a}
- {exchange: events, routing_key: b, rate_limit: {per_second: 0.5}}
`)
	want := []schedule.RateLimit{{Queue: "mail", PerSecond: 100, Burst: 5}, {Queue: "plain"}, {Exchange: "events", PerSecond: 0.5}}
	if got := c.RateLimits(); !slices.Equal(got, want) {
		t.Errorf("RateLimits: got %+v, want %+v", got, want)
	}
	for text, problem := range map[string]string{
		"[{queue: q, rate_limit: {per_second: 0}}]":            "destinations[0].rate_limit: expected per_second from one a day (0.0000116) to 100000",
		"[{queue: q, rate_limit: {burst: 3}}]":                 "destinations[0].rate_limit: expected per_second",
		"[{queue: q, rate_limit: {per_second: 2, burst: 0}}]":  "destinations[0].rate_limit.burst: expected 1 or more tasks, got 0",
		"[{queue: q, rate_limit: {per_second: 2, burst: -1}}]": "destinations[0].rate_limit: expected",
		"[{queue: q, rate_limit: {per_minute: 2}}]":            "per_minute",
		"[{exchange: e, routing_key: a, rate_limit: {per_second: 1}}, {exchange: e, routing_key: b, rate_limit: {per_second: 2}}]": "destinations[1].rate_limit: exchange \"e\" has a different rate limit at destinations[0]",
	} {
		if _, err := load([]byte("destinations: "+text+"\n"), Source{}); err == nil || !strings.Contains(err.Error(), problem) {
			t.Errorf("load with the destinations %s: got %v, want an error with %q", text, err, problem)
		}
	}
}

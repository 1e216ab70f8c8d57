package operations_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/integration/suite"
)

// retire deletes earlier layouts of every kind once they are empty, and deletes nothing else.
func TestCLIRetire(t *testing.T) {
	t.Parallel()
	suite.OnNewest(t, func(t *testing.T, v *suite.Vhost) {
		const destinations = "\ndestinations: [{queue: orders.expire}, {name: x, exchange: amq.topic, routing_key: a.b}]\n"
		present := suite.CommandOn(t, v, "delay: {bucket: {radices: [2]}}"+destinations)
		earlier := []func(...string) suite.Ran{
			suite.CommandOn(t, v, "delay: {bucket: {radices: [2], resolution: 1h}}"+destinations),
			suite.CommandOn(t, v, "delay: {queue_type: classic, bucket: {radices: [2]}}"+destinations),
			suite.CommandOn(t, v, "delay: {strategy: ttl, ttl: {delays: [1h]}}"+destinations),
		}
		now := suite.CommandOn(t, v,
			"delay: {bucket: {radices: [2]}, previous: [{radices: [2], resolution: 1h}, "+
				"{radices: [2], queue_type: classic}, {strategy: ttl, delays: [1h]}]}"+destinations)
		if r := present("apply"); r.Code != 0 {
			t.Fatalf("apply: got %v, want exit code 0", r)
		}
		want := v.Objects(t)
		for _, cmd := range earlier {
			if r := cmd("apply"); r.Code != 0 && !strings.Contains(r.Stderr, "orders.expire") { // with queue_type: classic, the existing destination queue conflicts
				t.Fatalf("apply: got %v, want exit code 0, or an error about orders.expire", r)
			}
		}
		if r := now("apply"); r.Code != 0 {
			t.Fatalf("apply: got %v, want exit code 0", r)
		}
		all := v.Objects(t)
		for i, queue := range map[int]string{0: "delay.bucket.r2-1h.1h", 2: "delay.ttl.1h"} {
			if r := earlier[i]("send", "--queue", "orders.expire", "--delay", "1h"); r.Code != 0 {
				t.Fatalf("send --queue orders.expire --delay 1h: got %v, want exit code 0", r)
			}
			if r := now("retire", "--yes"); r.Code != 1 || !strings.Contains(r.Stderr, queue+" 1") {
				t.Errorf("retiring a queue with a message: got %s, want exit code 1 and Stderr with %q", r, queue+" 1")
			}
			if left := v.Objects(t); !slices.Equal(left, all) {
				t.Errorf("after a refused retire, the objects are %v, want %v", left, all)
			}
			ch := v.Channel(t)
			if _, err := ch.QueuePurge(queue, false); err != nil {
				t.Fatalf("%v: %v", i, err)
			}
			// The management API may still count the purged message for a few seconds, and retire then refuses.
			suite.Eventually(t, queue+" is empty", func() bool { return now("retire", "--dry-run").Code == 0 })
		}
		if r := present("retire", "--yes"); r.Code != 1 || !strings.Contains(r.Stderr, "delay.previous is empty") {
			t.Errorf(`retire --yes: got %v, want exit code 1 and "delay.previous is empty" in the errors`, r)
		}
		if r := now("retire", "--yes"); r.Code != 0 || !strings.Contains(r.Stderr, "remove the layout from delay.previous") {
			t.Fatalf(`retire --yes: got %v, want exit code 0 and "remove the layout from delay.previous" in the errors`, r)
		}
		if r := now("doctor"); r.Code != 0 || !strings.Contains(r.Stdout, "delay.previous in every file") || strings.Contains(r.Stdout, "binding-missing") {
			t.Errorf(`doctor: got %v, want exit code 0, "delay.previous in every file" in the output and no "binding-missing" in the output`, r)
		}
		marked := func(s string) bool { return strings.Contains(s, "delay.declared.") }
		if left := slices.DeleteFunc(v.Objects(t), marked); !slices.Equal(left, slices.DeleteFunc(want, marked)) {
			t.Errorf("after retire, the objects are %v\nwant %v", left, want)
		}
		if r := present("plan"); r.Code != 0 {
			t.Errorf("plan for the current file: got %s, want exit code 0", r)
		}
		if r := now("retire", "--yes"); r.Code != 0 {
			t.Errorf("retire a second time: got %s, want exit code 0", r)
		}
	})
}

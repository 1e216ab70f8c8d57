package amqpx

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"
)

// However long it takes from the start of a send until its message is published, the message never overtakes an earlier
// one with the same delay, and is never early.
func TestSlowSendsKeepTheOrderOfOneDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := offline(t, nil)
		for range 200 {
			delay := time.Second + rand.N(3*time.Second)
			var last time.Time // when the previous message leaves its last delay queue
			for range 50 {
				p, err := c.prepare(&Message{Queue: "q", Delay: delay}, nil, time.Now())
				if err != nil {
					t.Fatal(err)
				}
				<-time.After(rand.N(10 * time.Millisecond))
				if rand.IntN(5) == 0 {
					<-time.After(rand.N(300 * time.Millisecond)) // for example because the window is full or the destination is being declared
				}
				r, err := c.route(p, time.Now())
				if err != nil {
					t.Fatal(err)
				}
				end := time.Now().Add(r.Delay)
				if end.Before(last) {
					t.Fatalf("delay %v: a message is delivered %v before the previous one, want the order of sending", delay, last.Sub(end))
				}
				if early := time.UnixMilli(p.due).Sub(end); early >= time.Millisecond { // a consumer holds a message that is early by less than this
					t.Fatalf("delay %v: the message is early by %v, want less than 1ms", delay, early)
				}
				last = end
			}
		}
	})
}

// The messages of a batch, which start together, keep their order even if they are published again after a lost
// connection.
func TestRestartKeepsTheOrderOfABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := offline(t, nil)
		start := time.Now()
		var last time.Time
		for range 1000 {
			p, err := c.prepare(&Message{Queue: "q", Delay: 1234 * time.Millisecond}, nil, start)
			if err != nil {
				t.Fatal(err)
			}
			<-time.After(rand.N(3 * time.Millisecond))
			p.restart(time.Now())
			r, err := c.route(p, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			end := time.Now().Add(r.Delay)
			if end.Before(last) {
				t.Fatalf("a message is delivered %v before the previous one, want the order of sending", last.Sub(end))
			}
			if due := time.UnixMilli(p.due); end.Before(due) || due.Before(time.Now().Add(1233*time.Millisecond)) {
				t.Fatalf("the message is due at %v and leaves its last queue at %v, want both at least 1.233s from now (%v), and the due time not later",
					due, end, time.Now())
			}
			if due := p.headers(nil)[HeaderDue]; due != p.due || !p.pub.Timestamp.Equal(p.start) {
				t.Fatalf("the message has the due header %v and the timestamp %v, want %v and %v", due, p.pub.Timestamp, p.due, p.start)
			}
			last = end
		}
	})
}

// A batch is published in the order of its delays, so that messages for the same delay queue are consecutive. Messages
// with the same delay keep the given order.
func TestOrderOfABatch(t *testing.T) {
	c := offline(t, nil)
	b := &batch{c: c, items: make([]prepared, 500)}
	for i := range b.items {
		m := Message{Queue: "q", Delay: rand.N(20*time.Second) / 7}
		if err := c.prepareAs(&b.items[i], &m, nil, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	order := b.order()
	seen := make([]bool, len(b.items))
	seen[order[0]] = true
	for n, i := range order[1:] {
		before := order[n]
		a, z := b.items[before].first.Delay, b.items[i].first.Delay
		if a > z || a == z && before > i {
			t.Fatalf("the batch has item %d with delay %v before item %d with delay %v, want the shorter delay first, and equal delays in order", before, a, i, z)
		}
		seen[i] = true
	}
	for i, ok := range seen {
		if !ok {
			t.Errorf("the order lacks item %d, want every item in it", i)
		}
	}
}

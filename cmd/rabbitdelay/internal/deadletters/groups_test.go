package deadletters

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// noon is when the first message was dead-lettered. The others follow at intervals of a second.
var noon = time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)

// grouped returns the groups of n messages whose errors are given by text.
func grouped(n int, o GroupOptions, text func(i int) string) ErrorGroups {
	g := grouping{o: o, groups: map[groupKey]*ErrorGroup{}}
	for i := range n {
		g.add(inspect.DeadLetter{
			Delivery: &amqpx.Delivery{ID: fmt.Sprint(i), Attempt: 5}, Reason: inspect.ReasonAttempts, Error: text(i),
			Died: noon.Add(time.Duration(i) * time.Second), Destination: topology.Destination{Queue: "q"},
		})
	}
	return g.result()
}

func TestGroups(t *testing.T) {
	const n = 3000
	text := func(i int) string {
		switch {
		case i == 0:
			return "disk full"
		case i < 2000:
			return fmt.Sprintf("order %d was not found", i)
		}
		return fmt.Sprintf("no such customer: %q", fmt.Sprint(i))
	}
	for order, want := range map[GroupOrder][]string{
		GroupsNewest: {"no such customer: … 1000", "order # was not found 1999", "disk full 1"},
		GroupsOldest: {"disk full 1", "order # was not found 1999", "no such customer: … 1000"},
		GroupsMost:   {"order # was not found 1999", "no such customer: … 1000", "disk full 1"},
	} {
		g := grouped(n, GroupOptions{Order: order, Limit: DefaultGroups}, text)
		var got []string
		for _, x := range g.Groups {
			got = append(got, fmt.Sprint(x.ErrorLike, " ", x.Messages))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", order, got, want)
		}
		if g.Sampled != n || g.Others != 0 || g.AtLeast {
			t.Errorf("%s: got %+v, want Sampled = %d, Others = 0 and AtLeast = false", order, g, n)
		}
	}
	g := grouped(n, GroupOptions{Order: GroupsMost, Limit: 1}, text)
	if g.Others != 1001 || len(g.Groups) != 1 {
		t.Fatalf("got %+v, want Others = 1001 and one group", g)
	}
	x := g.Groups[0]
	if !x.First.Equal(noon.Add(time.Second)) || !x.Last.Equal(noon.Add(1999*time.Second)) {
		t.Errorf("the group's messages are from %v to %v, want seconds 1 to 1999 after noon", x.First, x.Last)
	}
	if x.ExampleID != "1999" || x.Example != "order 1999 was not found" || x.Destination != "q" || x.Reason != inspect.ReasonAttempts {
		t.Errorf("got the group %+v, want destination q, reason inspect.ReasonAttempts and message 1999 as its example", x)
	}
}

// The number of groups is bounded for any content of the queue, and the largest groups are kept.
func TestGroupsAreBounded(t *testing.T) {
	const n = 4000
	g := grouped(n, GroupOptions{Order: GroupsMost, Limit: MaxGroups}, func(i int) string {
		if i%4 == 3 {
			return "timeout"
		}
		word := []byte("aaaaaa")
		for at := 0; i > 0; i /= 26 {
			word[at] += byte(i % 26)
			at++
		}
		return string(word)
	})
	sum := g.Others
	for _, x := range g.Groups {
		sum += x.Messages
	}
	if sum != n || !g.AtLeast || len(g.Groups) > MaxGroups {
		t.Errorf("got %d of %d messages in %d groups and AtLeast = %v, want all messages, at most MaxGroups groups and true", sum, n, len(g.Groups), g.AtLeast)
	}
	if x := g.Groups[0]; x.ErrorLike != "timeout" || x.Messages != n/4 {
		t.Errorf("the first group is %+v, want timeout with %d messages", x, n/4)
	}
}

func TestGroupErrorsRefuses(t *testing.T) {
	for _, o := range []GroupOptions{{Limit: MaxGroups + 1}, {Limit: -1}, {Order: "largest"}} {
		if _, err := GroupErrors(t.Context(), nil, "q", o); err == nil {
			t.Errorf("GroupErrors with %+v: got no error", o)
		}
	}
}

package lab

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

// honestPosts is a run in which nothing went wrong: of ten posts, 0 to 4 are
// published, 5 to 8 cancelled, 9 was rolled back.
func honestPosts() ([]*post, postFacts) {
	var list []*post
	f := postFacts{states: map[string]string{}, tasks: map[string]schedule.Status{}, published: map[string][]int64{}}
	for i := range 10 {
		x := &post{id: fmt.Sprint(i), scheduled: i < 9, due: 1000, version: 1, moved: i % 2, fired: i == 4, cancelled: i >= 5}
		list = append(list, x)
		switch {
		case i < 5:
			f.states[x.id], f.tasks[x.id], f.published[x.id] = "published", schedule.StatusDone, []int64{1000 + int64(i)}
		case i < 9:
			f.states[x.id], f.tasks[x.id] = "cancelled", schedule.StatusCancelled
		}
	}
	return list, f
}

func TestPostsLedgerOfHonestRun(t *testing.T) {
	list, f := honestPosts()
	l := drawUpPosts(list, f, 0)
	line, err := json.Marshal(l)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"scheduled":9,"rolled_back":1,"moved":4,"cancelled":4,"fired":1,"published":5,` +
		`"early":0,"lost":0,"published_twice":0,"published_although_cancelled":0,` +
		`"stale_stopped":0,"cancelled_stopped":0,"duplicates_stopped":0,"changes_too_late":0,"lateness_ms":{"p50":2,"p99":4,"max":4}}`
	if string(line) != want || l.bad() != nil {
		t.Errorf("got  %s, %v\nwant %s", line, l.bad(), want)
	}
}

// Every kind of violation, planted into an honest run, is found, and ends the
// whole demo with an error.
func TestPostsLedgerFindsViolations(t *testing.T) {
	for _, c := range []struct {
		name  string
		plant func(list []*post, f postFacts)
		early int
		want  string // of early, lost, twice, although cancelled, wrong
	}{
		{"published before the last due instant", func(_ []*post, f postFacts) { f.published["1"] = []int64{999} }, 0, "1 0 0 0 0"},
		{"a message without effect came early", func([]*post, postFacts) {}, 1, "1 0 0 0 0"},
		{"never published", func(_ []*post, f postFacts) {
			delete(f.published, "1")
			f.states["1"], f.tasks["1"] = "scheduled", schedule.StatusPending
		}, 0, "0 1 0 0 0"},
		{"failed", func(_ []*post, f postFacts) {
			delete(f.published, "1")
			f.states["1"], f.tasks["1"] = "scheduled", schedule.StatusFailed
		}, 0, "0 1 0 0 1"},
		{"published twice", func(_ []*post, f postFacts) { f.published["1"] = []int64{1000, 1001} }, 0, "0 0 1 0 0"},
		{"published although cancelled", func(_ []*post, f postFacts) { f.published["6"] = []int64{1} }, 0, "0 0 0 1 0"},
		{"done without publication", func(_ []*post, f postFacts) { delete(f.published, "1") }, 0, "0 1 0 0 1"},
		{"cancelled for the author only", func(_ []*post, f postFacts) { f.tasks["6"] = schedule.StatusPending }, 0, "0 0 0 0 1"},
		{"a task of a post that was rolled back", func(_ []*post, f postFacts) { f.tasks["9"] = schedule.StatusPending }, 0, "0 0 0 0 1"},
		{"a post that was rolled back is published", func(_ []*post, f postFacts) { f.published["9"] = []int64{2000} }, 0, "0 0 0 0 1"},
		{"a post is gone", func(_ []*post, f postFacts) { delete(f.states, "6") }, 0, "0 0 0 0 1"},
	} {
		list, f := honestPosts()
		c.plant(list, f)
		l := drawUpPosts(list, f, c.early)
		if got := fmt.Sprint(l.Early, l.Lost, l.PublishedTwice, l.PublishedCancelled, len(l.wrong)); got != c.want {
			t.Errorf("%s: early, lost, twice, cancelled, wrong are %s; want %s", c.name, got, c.want)
		}
		whole := ledger{Posts: l}
		if err := whole.verdict(); err == nil || !strings.Contains(err.Error(), "posts") {
			t.Errorf("%s: verdict is %v", c.name, err)
		}
	}
}

// Whatever is drawn, steps are in order, before the story's end, and every fate
// is among any twenty posts.
func TestPlanPosts(t *testing.T) {
	for range 200 {
		fates := map[string]int{}
		for _, x := range planPosts("run", 20) {
			fate := "plain"
			due, last := x.first, time.Duration(0)
			for _, s := range x.steps {
				if s.at <= last || s.at > due {
					t.Fatalf("%s: step at %v, after one at %v and due at %v", x.id, s.at, last, due)
				}
				last = s.at
				switch s.deed {
				case move:
					fate = "earlier"
					if s.to > due {
						fate = "later"
					}
					due = s.to
					if due <= s.at {
						t.Fatalf("%s: moved at %v to %v", x.id, s.at, due)
					}
				case cancelPost:
					fate = "cancelled"
				case fire:
					fate = "fired"
				}
			}
			if x.rollback {
				fate = "rolled back"
			}
			fates[fate]++
			if due > postMaxDelay+4*time.Second || x.createAt >= demoCreation || x.first < postMinDelay {
				t.Fatalf("%s: created at %v, due at %v, then %v", x.id, x.createAt, x.first, due)
			}
		}
		if got := fmt.Sprint(fates); got != "map[cancelled:5 earlier:3 fired:2 later:3 plain:6 rolled back:1]" {
			t.Fatal(got)
		}
	}
}

func TestDemoOptions(t *testing.T) {
	for story, want := range map[string][2]int{"all": {7, 8}, "orders": {7, 0}, "posts": {0, 8}} {
		o := demoOptions{orders: 7, posts: 8, story: story}
		if err := o.check(); err != nil || [2]int{o.orders, o.posts} != want {
			t.Errorf("%s: %+v, %v", story, o, err)
		}
	}
}

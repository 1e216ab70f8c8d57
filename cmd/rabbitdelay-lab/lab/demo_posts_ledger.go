package lab

import (
	"context"
	"fmt"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/lateness"
)

// postsLedger is the result of the posts' story.
type postsLedger struct {
	Scheduled  int `json:"scheduled"`
	RolledBack int `json:"rolled_back"`
	Moved      int `json:"moved"`
	Cancelled  int `json:"cancelled"`
	Fired      int `json:"fired"`
	Published  int `json:"published"`

	Early              int `json:"early"`
	Lost               int `json:"lost"`
	PublishedTwice     int `json:"published_twice"`
	PublishedCancelled int `json:"published_although_cancelled"`

	// Messages that the fence stopped.
	Stale             int64 `json:"stale_stopped"`
	CancelledStopped  int64 `json:"cancelled_stopped"`
	DuplicatesStopped int64 `json:"duplicates_stopped"`
	ChangesTooLate    int64 `json:"changes_too_late"`

	Lateness lateness.Percentiles `json:"lateness_ms"` // of publications, after the last due instant

	wrong []string // what contradicts itself, for people
}

// postFacts are what the database holds at the end.
type postFacts struct {
	states    map[string]string          // of the posts' own rows
	tasks     map[string]schedule.Status // by id
	published map[string][]int64         // when publications were committed, epoch ms
}

// drawUpPosts compares what was committed with what the database holds.
// earlyArrivals are messages that came before they were due, whatever their
// effect was.
//
// A post that was neither cancelled nor published is lost. Everything that was
// changed in one transaction has to agree: the post's row, its task and the
// publications.
func drawUpPosts(list []*post, f postFacts, earlyArrivals int) *postsLedger {
	l := &postsLedger{}
	var late lateness.Record
	early := 0
	known := map[string]bool{}
	for _, x := range list {
		if !x.scheduled {
			l.RolledBack++
			continue // that it has left nothing is checked below
		}
		known[x.id] = true
		l.Scheduled++
		at := f.published[x.id]
		count(&l.Moved, x.moved > 0)
		count(&l.Fired, x.fired)
		count(&l.Cancelled, x.cancelled)
		count(&l.Published, len(at) > 0)
		count(&l.PublishedTwice, len(at) > 1)
		count(&l.PublishedCancelled, x.cancelled && len(at) > 0)
		count(&l.Lost, !x.cancelled && len(at) == 0)
		for _, ms := range at {
			late.Add(time.UnixMilli(ms), time.UnixMilli(x.due))
			count(&early, ms < x.due && !x.cancelled)
		}
		want, state := schedule.StatusPending, "scheduled"
		switch {
		case x.cancelled:
			want, state = schedule.StatusCancelled, "cancelled"
		case len(at) > 0:
			want, state = schedule.StatusDone, "published"
		}
		if f.tasks[x.id] != want || f.states[x.id] != state {
			l.wrong = append(l.wrong, fmt.Sprintf("post %s is %q, its task %q, with %d publications", x.id, f.states[x.id], f.tasks[x.id], len(at)))
		}
	}
	for _, ids := range []map[string]bool{keys(f.states), keys(f.tasks), keys(f.published)} {
		for id := range ids {
			if !known[id] {
				l.wrong = append(l.wrong, fmt.Sprintf("post %s, which was not scheduled, has left something", id))
			}
		}
	}
	l.Early = max(early, earlyArrivals)
	l.Lateness, _ = late.Summary()
	return l
}

func count(n *int, when bool) {
	if when {
		*n++
	}
}

func keys[V any](m map[string]V) map[string]bool {
	out := make(map[string]bool, len(m))
	for k := range m {
		out[k] = true
	}
	return out
}

// reckon draws up the ledger of a run.
func (p *posts) reckon(ctx context.Context) (*postsLedger, error) {
	f, err := p.store.postFacts(ctx, p.queue)
	if err != nil {
		return nil, err
	}
	_, early := p.late.Summary()
	l := drawUpPosts(p.list, f, early)
	l.Stale, l.CancelledStopped, l.DuplicatesStopped = p.stale.Load(), p.stopped.Load(), p.repeated.Load()
	l.ChangesTooLate = p.tooLate.Load()
	return l, nil
}

// bad lists what the ledger should not have.
func (l *postsLedger) bad() (bad []string) {
	if l == nil {
		return nil
	}
	for _, x := range []struct {
		n    int
		what string
	}{
		{l.Early, "early"}, {l.Lost, "lost"}, {l.PublishedTwice, "published twice"}, {l.PublishedCancelled, "published although cancelled"},
	} {
		if x.n != 0 {
			bad = append(bad, fmt.Sprintf("%d posts %s", x.n, x.what))
		}
	}
	if len(l.wrong) > 0 {
		bad = append(bad, fmt.Sprintf("%d contradictions of posts (%s)", len(l.wrong), l.wrong[0]))
	}
	return bad
}

// show prints the ledger for people.
func (l *postsLedger) show(a *app) {
	a.Printf("  posts scheduled          %8d\n", l.Scheduled)
	a.Printf("  rolled back              %8d\n", l.RolledBack)
	a.Printf("  moved                    %8d\n", l.Moved)
	a.Printf("  cancelled                %8d\n", l.Cancelled)
	a.Printf("  fired at once            %8d\n", l.Fired)
	a.Printf("  published                %8d\n", l.Published)
	a.Printf("  ---------------------------------\n")
	a.Printf("  early                    %8d  %s\n", l.Early, mark(l.Early))
	a.Printf("  lost                     %8d  %s\n", l.Lost, mark(l.Lost))
	a.Printf("  published twice          %8d  %s\n", l.PublishedTwice, mark(l.PublishedTwice))
	a.Printf("  although cancelled       %8d  %s\n", l.PublishedCancelled, mark(l.PublishedCancelled))
	a.Printf("  ---------------------------------\n")
	a.Printf("  messages that the fence stopped\n")
	a.Printf("    of an earlier instant  %8d\n", l.Stale)
	a.Printf("    of cancelled posts     %8d\n", l.CancelledStopped)
	a.Printf("    duplicates             %8d\n", l.DuplicatesStopped)
	a.Printf("  ---------------------------------\n")
	showLateness(a, l.Lateness)
	a.Printf("\n")
}

func showLateness(a *app, p lateness.Percentiles) {
	a.Printf("  lateness p50             %8d ms\n", p.P50)
	a.Printf("  lateness p99             %8d ms\n", p.P99)
	a.Printf("  lateness max             %8d ms\n", p.Max)
}

func mark(n int) string {
	if n == 0 {
		return "ok"
	}
	return "WRONG"
}

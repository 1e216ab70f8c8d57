package page

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console/service"
)

// feed sends events until ctx is done or send fails.
type feed func(ctx context.Context, q *request, send func([]byte) error) error

// stream sends parts of a page as server-sent events whenever they change.
func (p *Pages) stream(from feed, known ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		q, err := p.request(w, r)
		if err == nil && !q.who.Role.May(service.RoleViewer) {
			err = service.ErrForbidden
		}
		if err == nil {
			err = unknownField(q, known)
		}
		if err != nil {
			p.write(w, q, p.problem(q, err))
			return
		}
		send, err := beginStream(w)
		if err != nil {
			return
		}
		if err := from(r.Context(), q, send); err != nil && r.Context().Err() == nil {
			_ = send(eventOf("problem", []byte(q.lang.text(describe(err).Heading)))) // the user sees that the stream has failed
		}
	}
}

// beginStream starts an event stream as the response and returns a function that sends an event.
func beginStream(w http.ResponseWriter) (send func([]byte) error, err error) {
	c := http.NewResponseController(w)
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // otherwise a buffering proxy would delay events
	// The server's deadlines are for responses that end.
	if err := errors.Join(supported(c.SetReadDeadline(time.Time{})), c.Flush()); err != nil {
		return nil, err
	}
	return func(event []byte) error {
		// A browser that disappeared without closing the connection must not block this goroutine forever.
		const patience = 20 * time.Second
		if err := supported(c.SetWriteDeadline(time.Now().Add(patience))); err != nil {
			return err
		}
		if _, err := w.Write(event); err != nil { //nolint:gosec,nolintlint // html/template has escaped it; gosec reports this only in some runs
			return err
		}
		return c.Flush()
	}, nil
}

// feedNow sends the parts of the first page. All users with the same view, time zone, language and role share one
// rendering.
func (p *Pages) feedNow(ctx context.Context, q *request, send func([]byte) error) error {
	return p.svc.Watch(ctx, q.who.Identity, func(o service.Overview) error {
		event, err := p.liveEvent(q, o)
		if err != nil {
			return err
		}
		return send(event)
	})
}

const (
	// pace is the minimum pause between two queries of a list of tasks that a user is viewing. The pause is also at least
	// relax times the duration of the last query.
	pace  = 4 * time.Second
	relax = 20
)

// feedPage returns a feed of the live part of a page. All users of the same page with the same fields, time zone,
// language and role share one query and one rendering.
func (p *Pages) feedPage(page handler) feed {
	return func(ctx context.Context, q *request, send func([]byte) error) error {
		var last []byte
		for {
			event, pause, err := p.pageEvent(q, page)
			if err != nil {
				return err
			}
			if bytes.Equal(event, last) {
				event = eventOf("same", []byte("1")) // so that both sides notice a broken connection
			} else {
				last = event
			}
			if err := send(event); err != nil {
				return err
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(pause):
			}
		}
	}
}

// pageEvent returns the latest rendering of a page's live part, and how long to wait before the next one.
func (p *Pages) pageEvent(q *request, page handler) (event []byte, pause time.Duration, err error) {
	key := []string{q.URL.Path, q.form.Encode(), q.lang.tag, q.prefs.Zone, string(q.who.Role)}
	e := p.live.entry(strings.Join(key, "\x00"))
	e.turn <- struct{}{}
	defer func() { <-e.turn }()
	good := max(pace, relax*e.took)
	if age := time.Since(e.at); e.event != nil && age < good {
		return e.event, max(good-age, pace/4), nil
	}
	began := time.Now()
	r := *q
	r.now, r.still = p.o.Now().In(q.prefs.zone), true
	a, err := page(&r)
	if err != nil {
		return nil, 0, err
	}
	if a.status >= http.StatusBadRequest {
		return nil, 0, fieldError("filter", "expected a valid filter")
	}
	part, err := p.part(&r, a, "live")
	if err != nil {
		return nil, 0, err
	}
	e.at, e.took, e.event = began, time.Since(began), eventOf("parts", part)
	return e.event, max(pace, relax*e.took), nil
}

// supported returns err, or nil if err only says that the ResponseWriter does not support deadlines, as httptest's
// recorder does not.
func supported(err error) error {
	if errors.Is(err, http.ErrNotSupported) {
		return nil
	}
	return err
}

// maxKept is the maximum number of cached renderings.
const maxKept = 200

// liveCache contains the latest renderings of pages, by path, fields, time zone, role and language.
type liveCache struct {
	mu   sync.Mutex
	kept map[string]*liveEntry
}

type liveEntry struct {
	turn  chan struct{} // a lock for the other fields
	at    time.Time
	took  time.Duration
	event []byte
}

func (c *liveCache) entry(key string) *liveEntry {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.kept[key]; e != nil {
		return e
	}
	if c.kept == nil || len(c.kept) >= maxKept {
		c.kept = map[string]*liveEntry{}
	}
	e := &liveEntry{turn: make(chan struct{}, 1)}
	c.kept[key] = e
	return e
}

func (p *Pages) liveEvent(q *request, o service.Overview) ([]byte, error) {
	e := p.live.entry(fmt.Sprint("now\x00", q.get("from"), "\x00", q.get("to"), "\x00", q.get("queue"), "\x00", periodOf(q).Name, "\x00", q.prefs.Zone, "\x00", q.who.Role, "\x00", q.lang.tag))
	e.turn <- struct{}{}
	defer func() { <-e.turn }()
	if e.event != nil && e.at.Equal(o.At) {
		return e.event, nil
	}
	r := *q
	r.now = p.o.Now().In(q.prefs.zone)
	d, err := p.nowData(&r, o)
	if err != nil {
		return nil, err
	}
	part, err := p.part(&r, answer{name: "now", data: d}, "live")
	if err != nil {
		return nil, err
	}
	e.at, e.event = o.At, eventOf("parts", part)
	return e.event, nil
}

// eventOf encodes an event. Each line of the data becomes a data line of the event.
func eventOf(name string, data []byte) []byte {
	var b bytes.Buffer
	_, _ = fmt.Fprintf(&b, "event: %s\n", name)
	for line := range bytes.Lines(data) {
		if line = bytes.TrimSpace(line); len(line) > 0 {
			_, _ = fmt.Fprintf(&b, "data: %s\n", line)
		}
	}
	b.WriteByte('\n')
	return b.Bytes()
}

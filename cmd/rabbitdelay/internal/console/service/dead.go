package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/change"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/deadletters"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/status"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
	"github.com/rabbitdelay/rabbitdelay/topology"
	public "github.com/rabbitdelay/rabbitdelay/topology/live"
)

// Requeue selects dead letters or parked messages, and specifies their destination.
type Requeue struct {
	Queue  string
	Filter inspect.DeadLetterFilter
	To     topology.Destination // zero: send each message to its own destination
	Limit  int                  // the maximum number of messages
	Rate   float64              // messages a second; 0: no limit
	// Discard removes the messages instead of sending them, and first saves them in a file for the job.
	Discard bool
}

// action returns the name of the job's action.
func (r Requeue) action() string {
	if r.Discard {
		return "discard"
	}
	return "requeue"
}

// goodbye is the timeout for closing a connection.
const goodbye = 2 * time.Second

// Peek returns the messages at the head of a dead-letter queue or of the parked queue. Only operators see the bodies
// and most header values.
func (c *Core) Peek(ctx context.Context, who Identity, queue string, limit int) (inspect.Peeked, error) {
	if err := within("limit", limit, inspect.MaxPeek); err != nil {
		return inspect.Peeked{}, err
	}
	src, err := c.source(ctx)
	if err != nil {
		return inspect.Peeked{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	conn, err := src.Broker.Dial(ctx)
	if err != nil {
		return inspect.Peeked{}, ofBroker(err)
	}
	defer func() { _ = conn.CloseDeadline(time.Now().Add(goodbye)) }() // an error no longer matters
	p, err := inspect.Peek(ctx, conn, queue, inspect.PeekOptions{Limit: limit, Prefix: src.Want.Prefix, Management: live.Public[*public.Management](src.Broker.Management)})
	veilDead(who, p.Messages)
	return p, ofBroker(err)
}

// longestRead is the timeout for reading a whole queue while a user waits.
const longestRead = 50 * time.Second

// ErrorGroups groups the messages of a whole queue by their errors. While it reads the messages, consumers cannot get
// them, so the result is cached for a multiple of the time that reading took.
func (c *Core) ErrorGroups(ctx context.Context, queue string, order deadletters.GroupOrder, limit int) (deadletters.ErrorGroups, error) {
	if err := within("limit", limit, deadletters.MaxGroups); err != nil {
		return deadletters.ErrorGroups{}, err
	}
	src, err := c.source(ctx)
	if err != nil {
		return deadletters.ErrorGroups{}, err
	}
	g, err := c.errors.get(fmt.Sprintf("%s %d %s", order, limit, queue), func(time.Time) (deadletters.ErrorGroups, error) {
		ctx, cancel := context.WithTimeoutCause(ctx, longestRead, errLongQueue)
		defer cancel()
		conn, err := src.Broker.Dial(ctx)
		if err != nil {
			return deadletters.ErrorGroups{}, err
		}
		defer func() { _ = conn.CloseDeadline(time.Now().Add(goodbye)) }() // an error no longer matters
		g, err := deadletters.GroupErrors(ctx, conn, queue, deadletters.GroupOptions{Limit: limit, Order: order, Prefix: src.Want.Prefix, Management: live.Public[*public.Management](src.Broker.Management)})
		if err != nil && errors.Is(context.Cause(ctx), errLongQueue) {
			err = errLongQueue
		}
		return g, err
	})
	return g, ofBroker(err)
}

func (c *Core) requeueOptions(ctx context.Context, r Requeue) (*amqpx.Client, inspect.RequeueOptions, error) {
	o := inspect.RequeueOptions{Queue: r.Queue, Filter: r.Filter, To: r.To, Limit: r.Limit, Rate: r.Rate, Discard: r.Discard}
	if r.Discard {
		o.InFlight = discardedAtOnce
	}
	if c.cfg.Client == nil {
		return nil, o, fmt.Errorf("%w: this process has no client for the broker", ErrUnavailable)
	}
	if r.Discard && c.cfg.Discarded == "" {
		return nil, o, errNoDiscards
	}
	src, err := c.source(ctx)
	if err != nil {
		src = status.Source{}
	}
	if err := o.Validate(src.Want.Prefix); err != nil {
		return nil, o, err
	}
	client, err := c.cfg.Client()
	if err != nil {
		return nil, o, ofBroker(err)
	}
	o.Management = live.Public[*public.Management](src.Broker.Management)
	if c.cfg.Store != nil { // avoid an interface that contains a nil pointer and is not nil itself
		o.Tasks = c.cfg.Store
	}
	return client, o, nil
}

// RequeueDryRun reports what a requeue would do. The caller must be an operator, because the dry run takes each message
// from the queue and puts it back.
func (c *Core) RequeueDryRun(ctx context.Context, who Identity, r Requeue) (inspect.RequeueReport, error) {
	if !who.Role.May(RoleOperator) {
		return inspect.RequeueReport{}, fmt.Errorf("%s: %w", r.action(), ErrForbidden)
	}
	client, o, err := c.requeueOptions(ctx, r)
	if err != nil {
		return inspect.RequeueReport{}, err
	}
	o.DryRun = true
	ctx, cancel := context.WithTimeout(ctx, 3*patience)
	defer cancel()
	rep, err := inspect.Requeue(ctx, client, o)
	return rep, ofBroker(err)
}

// Requeue starts a job that sends or discards at most r.Limit messages.
func (c *Core) Requeue(ctx context.Context, who Identity, r Requeue) (Job, error) {
	if !who.Role.May(RoleOperator) {
		return Job{}, fmt.Errorf("%s: %w", r.action(), ErrForbidden)
	}
	if _, _, err := c.requeueOptions(ctx, r); err != nil {
		return Job{}, err
	}
	if r.Limit < 1 {
		return Job{}, &change.FieldError{Field: "limit", Reason: fmt.Sprintf("limit is %d; expected the number of messages that a dry run has counted, which must be at least 1", r.Limit)}
	}
	q := request{Requeue: &r}
	return c.start(ctx, who, change.Entry{Action: r.action(), Target: r.Queue, Detail: q.words(false)}, int64(r.Limit), q)
}

// reservedAtOnce is the number of messages that a job reserves with one write. If the job's process is killed and the
// job is continued, reserved messages that are not known to be processed count as processed, so the job may process
// fewer messages than its limit allows.
const reservedAtOnce = 100

// requeue runs a job that Requeue started. It records how many messages it may process before it processes them, so
// that a job that continues after its process was killed does not exceed its limit.
func (c *Core) requeue(ctx context.Context, w *working, r Requeue) (string, error) {
	before := w.now().Done
	reserved, err := strconv.ParseInt(w.now().place, 10, 64)
	if err != nil { // the job is new, or its last process exited cleanly
		reserved = before
	}
	unsure, limit := reserved-before, int64(r.Limit)
	if r.Limit = int(limit - reserved); r.Limit <= 0 {
		return doneBefore(before, unsure), nil
	}
	client, o, err := c.requeueOptions(ctx, r)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	o.Progress = func(p inspect.RequeueReport) {
		gone, needs := before+int64(p.Gone()), int64(max(o.InFlight, 1))
		more := gone+unsure+needs > reserved && reserved < limit
		if more {
			reserved = min(gone+unsure+needs+reservedAtOnce, limit)
		}
		place := strconv.FormatInt(reserved, 10)
		w.at(gone, place) // before progress, or a heartbeat might overwrite the new place with the old one
		if more {
			if err := w.progress(ctx, nil, gone, place, nil); err != nil {
				cancel(err)
			}
		}
	}
	if o.Progress(inspect.RequeueReport{}); ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	var p inspect.RequeueReport
	kept := ""
	if r.Discard {
		p, kept, err = c.discard(ctx, w, client, o)
	} else {
		p, err = inspect.Requeue(ctx, client, o)
	}
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	gone, place := before+int64(p.Gone()), ""
	if unsure > 0 {
		place = strconv.FormatInt(gone+unsure, 10)
	}
	w.at(gone, place)
	result := fates(p, r.Discard) + kept
	if unsure > 0 {
		result += "; " + doneBefore(before, unsure)
	}
	return result, ofBroker(err)
}

// doneBefore describes how many messages were processed by earlier processes of a job.
func doneBefore(n, unsure int64) string {
	text := shown.Count(n, "message", "messages") + " done earlier"
	if unsure > 0 {
		text += fmt.Sprintf(", and possibly up to %d more when its process was killed", unsure)
	}
	return text
}

// DescribeDead describes a filter in words. It includes header values only if values is true, because only operators
// may see them.
func DescribeDead(f inspect.DeadLetterFilter, values bool) string {
	var parts []string
	add := func(name, value string) {
		if value != "" {
			parts = append(parts, name+" "+value)
		}
	}
	add("reason", strings.Join(f.Reasons, " or "))
	add("id", strings.Join(f.IDs, " or "))
	add("destination", strings.Join(f.Destinations, " or "))
	if f.Tasks {
		add("a", "task")
	}
	add("error", f.Error)
	add("error like", f.ErrorLike)
	add("header", change.DescribeHeader(f.Header, f.HeaderValue, values))
	if f.OlderThan > 0 {
		add("older than", topology.FormatDuration(f.OlderThan))
	}
	if f.NewerThan > 0 {
		add("newer than", topology.FormatDuration(f.NewerThan))
	}
	return strings.Join(parts, ", ")
}

// discardedAtOnce is the number of messages that are synced to disk together.
const discardedAtOnce = 250

// errNoDiscards means that the process has no directory in which to save discarded messages.
var errNoDiscards = fmt.Errorf("%w: this process has no directory for the messages; set serve.discarded, or use rabbitdelay discard --save", ErrUnavailable)

// discard removes messages for a job, and first saves them in a new file.
func (c *Core) discard(ctx context.Context, w *working, client *amqpx.Client, o inspect.RequeueOptions) (p inspect.RequeueReport, kept string, err error) {
	if err := os.MkdirAll(c.cfg.Discarded, 0o700); err != nil {
		return p, "", fmt.Errorf("serve.discarded: %w", err)
	}
	path := c.discardPath(w.now().ID, 1)
	f, err := inspect.CreateSaveFile(path)
	for n := 2; errors.Is(err, fs.ErrExist); n++ { // the job was continued, and its earlier runs have written files
		path = c.discardPath(w.now().ID, n)
		f, err = inspect.CreateSaveFile(path)
	}
	if err != nil {
		return p, "", fmt.Errorf("serve.discarded: %w", err)
	}
	o.Save = f.Save
	p, err = inspect.Requeue(ctx, client, o)
	if f.Written() > 0 {
		kept = ", kept in " + filepath.Base(path)
		if first := filepath.Base(c.discardPath(w.now().ID, 1)); first != filepath.Base(path) {
			kept = ", kept in " + first + " to " + filepath.Base(path)
		}
	}
	return p, kept, errors.Join(err, f.Close())
}

func (c *Core) discardPath(job string, n int) string {
	return filepath.Join(c.cfg.Discarded, fmt.Sprintf("%s.%d.jsonl", job, n))
}

// Discarded returns the messages that a job has discarded and this process has saved in its directory, as lines that
// inspect.SavedIn reads. The caller must be an operator. It returns ErrNoMessages if there are no messages.
func (c *Core) Discarded(ctx context.Context, who Identity, id string) (io.ReadCloser, error) {
	if !who.Role.May(RoleOperator) {
		return nil, fmt.Errorf("discarded messages: %w", ErrForbidden)
	}
	j, err := c.job(ctx, id) // only the id of an existing job may become part of a path
	if err != nil {
		return nil, err
	}
	var all files
	var readers []io.Reader
	for n := 1; c.cfg.Discarded != ""; n++ {
		f, err := os.Open(c.discardPath(j.ID, n))
		if errors.Is(err, fs.ErrNotExist) {
			break
		}
		if err != nil {
			return nil, errors.Join(err, all.Close())
		}
		all, readers = append(all, f), append(readers, f)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("job %s: %w", id, ErrNoMessages)
	}
	return struct {
		io.Reader
		io.Closer
	}{io.MultiReader(readers...), all}, nil
}

// files is a list of open files that Close closes together.
type files []*os.File

// Close closes all files.
func (list files) Close() (err error) {
	for _, f := range list {
		err = errors.Join(err, f.Close())
	}
	return err
}

// fates describes how many messages of a requeue or a discard had each outcome.
func fates(p inspect.RequeueReport, discard bool) string {
	missed := ""
	if p.Missed > 0 {
		missed = fmt.Sprintf(", %d not examined, because other consumers hold or have removed them", p.Missed)
	}
	if discard {
		return fmt.Sprintf("%d examined, %d discarded, %d stayed", p.Examined, p.Discarded, p.Stayed) + missed
	}
	return fmt.Sprintf("%d examined, %d sent, %d revived, %d removed, %d stayed", p.Examined, p.Sent, p.Revived, p.Removed, p.Stayed) + missed
}

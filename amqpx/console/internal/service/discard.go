package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
)

// discardedAtOnce is how many messages are made safe on disk at a time.
const discardedAtOnce = 250

// errNoDiscards is that of a process that may not lose what it removes.
var errNoDiscards = fmt.Errorf("%w: this process has no directory for the messages; set serve.discarded, or use rabbitdelay discard --save", ErrUnavailable)

// discard removes messages for a job, and keeps them in a new file first.
func (c *Core) discard(ctx context.Context, w *working, client *amqpx.Client, o inspect.RequeueOptions) (p inspect.RequeueReport, kept string, err error) {
	f, path, err := c.discardFile(w.now().ID)
	if err != nil {
		return p, "", fmt.Errorf("serve.discarded: %w", err)
	}
	o.Save = f.Save
	p, err = inspect.Requeue(ctx, client, o)
	if f.Written() > 0 {
		kept = ", kept in " + filepath.Base(path)
	}
	return p, kept, errors.Join(err, f.Close())
}

// discardFile creates a file for a job: the first, or one more after the job was continued.
func (c *Core) discardFile(job string) (f *inspect.SaveFile, path string, err error) {
	if err := os.MkdirAll(c.cfg.Discarded, 0o700); err != nil {
		return nil, "", err
	}
	for n := 1; ; n++ {
		path = c.discardPath(job, n)
		if f, err = inspect.CreateSaveFile(path); !errors.Is(err, fs.ErrExist) {
			return f, path, err
		}
	}
}

func (c *Core) discardPath(job string, n int) string {
	return filepath.Join(c.cfg.Discarded, fmt.Sprintf("%s.%d.jsonl", job, n))
}

// Discarded returns the messages that a job has removed and this process has in its directory:
// lines that inspect.SavedIn reads. It needs an operator.
func (c *Core) Discarded(ctx context.Context, who Identity, id string) (io.ReadCloser, error) {
	if !who.Role.May(RoleOperator) {
		return nil, fmt.Errorf("discarded messages: %w", ErrForbidden)
	}
	j, err := c.job(ctx, id) // only an id of ours becomes a part of a path
	if err != nil {
		return nil, err
	}
	var all files
	for n := 1; c.cfg.Discarded != ""; n++ {
		f, err := os.Open(c.discardPath(j.ID, n))
		if errors.Is(err, fs.ErrNotExist) {
			break
		}
		if err != nil {
			return nil, errors.Join(err, all.Close())
		}
		all = append(all, f)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("job %s: %w", id, ErrNoMessages)
	}
	return struct {
		io.Reader
		io.Closer
	}{io.MultiReader(all.readers()...), all}, nil
}

// files are read one after the other.
type files []*os.File

func (list files) readers() (out []io.Reader) {
	for _, f := range list {
		out = append(out, f)
	}
	return out
}

// Close closes all of them.
func (list files) Close() (err error) {
	for _, f := range list {
		err = errors.Join(err, f.Close())
	}
	return err
}

// fates counts what became of messages.
func fates(p inspect.RequeueReport, discard bool) string {
	if discard {
		return fmt.Sprintf("%d looked at, %d discarded, %d stayed", p.Looked, p.Discarded, p.Stayed)
	}
	return fmt.Sprintf("%d looked at, %d sent, %d revived, %d removed, %d stayed", p.Looked, p.Sent, p.Revived, p.Removed, p.Stayed)
}

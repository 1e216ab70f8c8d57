package drain

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	table "github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/plugintable"
)

// journal records which messages were sent and may still be in the plugin's table. It is a text file. The first line
// identifies the table, "sent ID" is appended for each confirmed message, and "deleted" is appended after the rows of
// all preceding messages were deleted.
type journal struct {
	mu      sync.Mutex
	f       file
	pending []table.ID // sent, but possibly not deleted
}

// file has the methods of *os.File that a journal uses.
type file interface {
	io.ReadWriteSeeker
	Truncate(size int64) error
	Sync() error
	Close() error
}

const (
	sentWord    = "sent "
	deletedLine = "deleted"
)

// openJournal opens or creates the journal of a table. It removes an incomplete last line, which a killed process may
// have left behind.
func openJournal(path, of string) (*journal, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	j := &journal{f: f}
	if err := j.read(path, "rabbitdelay plugin drain "+of); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return j, nil
}

func (j *journal) read(path, head string) error {
	raw, err := io.ReadAll(j.f)
	if err != nil {
		return err
	}
	if first := head + "\n"; !strings.HasPrefix(string(raw), first) && !strings.HasPrefix(first, string(raw)) {
		return fmt.Errorf("%s: expected the state of %q, but this is the state of another table, or another kind of file; give a different file for --state", path, head)
	}
	whole := raw[:bytes.LastIndexByte(raw, '\n')+1]
	if err := j.f.Truncate(int64(len(whole))); err != nil {
		return err
	}
	if _, err := j.f.Seek(int64(len(whole)), io.SeekStart); err != nil {
		return err
	}
	if len(whole) == 0 {
		return j.write(head + "\n")
	}
	lines := bufio.NewScanner(bytes.NewReader(whole))
	for n := 1; lines.Scan(); n++ {
		line := lines.Text()
		switch id, sent := strings.CutPrefix(line, sentWord); {
		case n == 1:
		case line == deletedLine:
			j.pending = j.pending[:0]
		case sent:
			row, err := table.ParseID(id)
			if err != nil {
				return fmt.Errorf("%s:%d: %w", path, n, err)
			}
			j.pending = append(j.pending, row)
		default:
			return fmt.Errorf("%s:%d: expected \"sent …\" or \"deleted\", got %q", path, n, line)
		}
	}
	return lines.Err()
}

// write appends a line. If it can write only a part of the line, for example because the disk is full, it removes that
// part, so that the next line does not follow half a line.
func (j *journal) write(s string) error {
	n, err := j.f.Write([]byte(s))
	if err == nil || n == 0 {
		return err
	}
	end, terr := j.f.Seek(int64(-n), io.SeekCurrent)
	if terr == nil {
		terr = j.f.Truncate(end)
	}
	return errors.Join(err, terr)
}

// sent records a confirmed message. The record is kept if the process is killed, but not necessarily after a power
// failure.
func (j *journal) sent(id table.ID) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.pending = append(j.pending, id)
	return j.write(sentWord + id.String() + "\n")
}

// deleted records that the rows of all sent messages were deleted.
func (j *journal) deleted() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.pending = j.pending[:0]
	return j.write(deletedLine + "\n")
}

func (j *journal) close() error { return j.f.Close() }

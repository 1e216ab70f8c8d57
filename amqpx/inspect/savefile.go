package inspect

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"sync"
)

// SaveFile is a new file of messages, one a line, for RequeueOptions.Save.
type SaveFile struct {
	mu      sync.Mutex
	f       *os.File
	path    string
	size    int64 // of what is safe on disk
	written int
	broken  error // why nothing more can be written
}

// CreateSaveFile creates a file that only its owner may read. A file that is there already
// is an error that wraps fs.ErrExist: none is written over.
func CreateSaveFile(path string) (*SaveFile, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err == nil {
		err = syncFolder(filepath.Dir(path))
	}
	if err != nil {
		return nil, err
	}
	return &SaveFile{f: f, path: path}, nil
}

// syncFolder makes a new name safe on disk.
func syncFolder(dir string) error {
	if runtime.GOOS == "windows" { // where a folder cannot be opened for it
		return nil
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Save appends messages, and returns nil when they are safe on disk. After an error none of
// them are in the file, and nothing more can be saved in it.
func (s *SaveFile) Save(list []SavedMessage) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken != nil {
		return s.broken
	}
	n, err := s.append(list)
	if err == nil {
		s.size += n
		s.written += len(list)
		return nil
	}
	s.broken = fmt.Errorf("writing %s: %w", s.path, err)
	if err := s.f.Truncate(s.size); err != nil {
		s.broken = fmt.Errorf("%w; its last line may be cut off: %w", s.broken, err)
	}
	return s.broken
}

func (s *SaveFile) append(list []SavedMessage) (n int64, err error) {
	count := &counter{w: s.f}
	out := bufio.NewWriterSize(count, 1<<20)
	for _, m := range list {
		line, err := m.MarshalJSON()
		if err == nil && len(line) >= maxSavedLine {
			err = fmt.Errorf("it has more than %d MiB in JSON", maxSavedLine>>20)
		}
		if err != nil {
			return count.n, fmt.Errorf("message %q: %w", m.Message.MessageId, err)
		}
		_, _ = out.Write(line) // Flush returns its error
		_ = out.WriteByte('\n')
	}
	if err := out.Flush(); err != nil {
		return count.n, err
	}
	return count.n, s.f.Sync()
}

// counter counts what is written.
type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// Written is how many messages are in the file.
func (s *SaveFile) Written() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.written
}

// Close closes the file, and removes it if no message is in it.
func (s *SaveFile) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.f.Close()
	if s.written == 0 {
		err = errors.Join(err, os.Remove(s.path))
	}
	return err
}

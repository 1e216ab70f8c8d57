package broker

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// EnvFaketime names the libfaketime library file. Default: the path of Debian's package libfaketime.
const EnvFaketime = "RABBITDELAY_FAKETIME"

// FaketimeAvailable returns the path of libfaketime, which gives a private node its own clock. If it is not installed,
// it returns "" and the reason.
func FaketimeAvailable() (path, reason string) {
	if path = os.Getenv(EnvFaketime); path != "" {
		return path, ""
	}
	if found := firstOf("/usr/lib/*/faketime/libfaketimeMT.so.1"); len(found) > 0 {
		return found[0], ""
	}
	return "", "libfaketime is not installed; `make setup` does that, or name its file by " + EnvFaketime
}

// SetClock sets the broker's clock ahead of the machine's clock, or behind it if the duration is negative. If the
// broker is running and was started with a modified clock, the change takes effect within about a second. Otherwise it
// takes effect at the next start. SetClock returns an error if the broker is not a private node, or if libfaketime is
// missing.
func (b *Broker) SetClock(ahead time.Duration) error {
	return b.control(func(s server) error {
		n, ok := s.(*node)
		if !ok {
			return errors.New("only a private node can have its own clock")
		}
		return n.setClock(ahead)
	})
}

func (n *node) setClock(ahead time.Duration) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.clock = Preload{}
	file := filepath.Join(n.dir, "clock")
	if ahead == 0 {
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	path, reason := FaketimeAvailable()
	if path == "" {
		return errors.New(reason)
	}
	n.clock = faketime(path, "FAKETIME_TIMESTAMP_FILE="+file, "FAKETIME_CACHE_DURATION=1")
	return os.WriteFile(file, []byte(offset(ahead)+"\n"), 0o600)
}

// ClockAhead returns a Preload that sets a broker's clock ahead, using the libfaketime library at path (see
// [FaketimeAvailable]).
func ClockAhead(path string, ahead time.Duration) Preload {
	return faketime(path, "FAKETIME="+offset(ahead))
}

func faketime(path string, settings ...string) Preload {
	// Do not change the monotonic clock, because the node's timeouts must stay correct.
	return Preload{libraries: []string{path}, env: append(settings, "FAKETIME_DONT_FAKE_MONOTONIC=1")}
}

func offset(ahead time.Duration) string { return fmt.Sprintf("%+ds", int(ahead.Seconds())) }

// forgetClock removes the shared memory that libfaketime leaves behind when its process is killed.
func forgetClock(pid int) {
	for _, name := range []string{"faketime_shm_%d", "sem.faketime_sem_%d"} {
		_ = os.Remove(fmt.Sprintf("/dev/shm/"+name, pid)) // most processes have none
	}
}

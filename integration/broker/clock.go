package broker

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// EnvFaketime names the file of libfaketime. Default: where Debian's package libfaketime
// puts it.
const EnvFaketime = "RABBITDELAY_FAKETIME"

// FaketimeAvailable returns the file of libfaketime, by which a private node gets a clock of
// its own, or "" and the reason why there is none.
func FaketimeAvailable() (path, reason string) {
	if path = os.Getenv(EnvFaketime); path != "" {
		return path, ""
	}
	if found := firstOf("/usr/lib/*/faketime/libfaketimeMT.so.1"); len(found) > 0 {
		return found[0], ""
	}
	return "", "libfaketime is not installed; `make setup` does that, or name its file by " + EnvFaketime
}

// SetClock sets the clock of the broker ahead of the machine's, or behind where that is
// negative: within about a second if the broker runs and has been started with a clock that was
// wrong, else from its next start on. It fails for a broker that is no private node, and without
// libfaketime.
func (b *Broker) SetClock(ahead time.Duration) error {
	return b.control(func(s server) error {
		n, ok := s.(*node)
		if !ok {
			return errors.New("only a private node has a clock of its own")
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

// ClockAhead sets a broker's clock ahead by that much, with the libfaketime of
// [FaketimeAvailable].
func ClockAhead(path string, ahead time.Duration) Preload {
	return faketime(path, "FAKETIME="+offset(ahead))
}

func faketime(path string, settings ...string) Preload {
	// A node whose waits end by a wrong clock shows nothing.
	return Preload{libraries: []string{path}, env: append(settings, "FAKETIME_DONT_FAKE_MONOTONIC=1")}
}

func offset(ahead time.Duration) string { return fmt.Sprintf("%+ds", int(ahead.Seconds())) }

// forgetClock removes what libfaketime leaves behind of a process that was killed.
func forgetClock(pid int) {
	for _, name := range []string{"faketime_shm_%d", "sem.faketime_sem_%d"} {
		_ = os.Remove(fmt.Sprintf("/dev/shm/"+name, pid)) // most have none
	}
}

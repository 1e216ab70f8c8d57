//go:build unix && !solaris && !illumos && !aix

package auth

import (
	"errors"
	"os"
	"syscall"
)

// lock waits until no other process is changing files in dir. It creates no lock file.
func lock(dir string) (unlock func(), err error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	for {
		if err = syscall.Flock(int(d.Fd()), syscall.LOCK_EX); !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		_ = d.Close()
		return nil, err
	}
	return func() { _ = d.Close() }, nil // closing the directory unlocks it
}

// keep sets the mode and owner of tmp to those of the file that it will replace.
func keep(tmp *os.File, was os.FileInfo) error {
	if s, ok := was.Sys().(*syscall.Stat_t); ok && int(s.Uid) != os.Geteuid() {
		if err := tmp.Chown(int(s.Uid), int(s.Gid)); err != nil {
			return err
		}
	}
	return tmp.Chmod(was.Mode().Perm())
}

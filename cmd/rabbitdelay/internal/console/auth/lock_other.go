//go:build !unix || solaris || illumos || aix

package auth

import "os"

// lock does nothing on systems without flock. On such systems, do not run two commands that change the users file at
// the same time.
func lock(string) (unlock func(), err error) { return func() {}, nil }

func keep(tmp *os.File, was os.FileInfo) error { return tmp.Chmod(was.Mode().Perm()) }

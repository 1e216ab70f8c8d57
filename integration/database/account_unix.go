//go:build unix

package database

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"syscall"
	"time"
)

// account is the system user that a server runs as. PostgreSQL refuses to run as root. The zero value is the user that
// this process runs as.
type account struct {
	uid, gid int
	other    bool
}

// lookupAccount returns the account with the given name if this process runs as root. It returns the zero value for an
// empty name, and for all other users, who cannot change accounts and do not need to.
func lookupAccount(name string) (account, error) {
	if os.Getuid() != 0 || name == "" {
		return account{}, nil
	}
	found, err := user.Lookup(name)
	if err != nil {
		return account{}, fmt.Errorf("a server that root starts runs under its package's account: %w", err)
	}
	uid, err := strconv.Atoi(found.Uid)
	if err != nil {
		return account{}, err
	}
	gid, err := strconv.Atoi(found.Gid)
	if err != nil {
		return account{}, err
	}
	return account{uid: uid, gid: gid, other: true}, nil
}

func (a account) own(path string) error {
	if !a.other {
		return nil
	}
	return os.Chown(path, a.uid, a.gid)
}

func (a account) become(cmd *exec.Cmd) {
	if a.other {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}}
	}
}

// remove removes a directory. It retries, because the children of a killed server may still write to the directory
// until they notice that the server is gone.
func (account) remove(dir string) error {
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	deadline := time.After(10 * time.Second)
	for {
		err := os.RemoveAll(dir)
		if err == nil || !errors.Is(err, syscall.ENOTEMPTY) {
			return err
		}
		select {
		case <-deadline:
			return err
		case <-ticker.C:
		}
	}
}

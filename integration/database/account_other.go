//go:build !unix

package database

import (
	"os"
	"os/exec"
)

// account is the user that this process runs as. Servers are started on Unix systems only.
type account struct{}

func lookupAccount(string) (account, error) { return account{}, nil }

func (account) own(string) error        { return nil }
func (account) become(*exec.Cmd)        {}
func (account) remove(dir string) error { return os.RemoveAll(dir) }

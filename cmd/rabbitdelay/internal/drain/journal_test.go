package drain

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	table "github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/plugintable"
)

// If a process is killed while it writes the journal, the next one reads the complete lines and continues.
func TestJournalOutlivesAKill(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	ids := []table.ID{{Due: 1, Ref: []byte{1}}, {Due: 2, Ref: []byte{2}}, {Due: 3, Ref: []byte{3}}}
	j, err := openJournal(path, "x")
	if err != nil {
		t.Fatal(err)
	}
	for i, id := range ids {
		if err := j.sent(id); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			if err := j.deleted(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := j.close(); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for n := range len(whole) + 1 {
		if err := os.WriteFile(path, whole[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		j, err := openJournal(path, "x")
		if err != nil {
			t.Fatalf("the first %d bytes: %v", n, err)
		}
		kept := string(whole[:n])
		kept = kept[:strings.LastIndex(kept, "\n")+1]
		_, after, deleted := strings.Cut(kept, "deleted\n")
		want := strings.Count(kept, "sent ")
		if deleted {
			want = strings.Count(after, "sent ")
		}
		if len(j.pending) != want {
			t.Errorf("the first %d bytes: got %d pending messages, want %d", n, len(j.pending), want)
		}
		if err := j.close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := openJournal(path, "y"); err == nil || !strings.Contains(err.Error(), "another table") {
		t.Errorf(`the state of another table: got error %v, want "another table" in it`, err)
	}
}

// A file that is not a state file is not changed.
func TestJournalLeavesOtherFiles(t *testing.T) {
	for _, content := range []string{"delay:", "delay:\n  strategy: ttl", "x", "xy\n"} {
		path := filepath.Join(t.TempDir(), "delays.yaml")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatalf("%s: %v", content, err)
		}
		if _, err := openJournal(path, "x"); err == nil || !strings.Contains(err.Error(), "another kind of file") {
			t.Errorf(`%q: got error %v, want "another kind of file" in it`, content, err)
		}
		if left, err := os.ReadFile(path); err != nil || string(left) != content {
			t.Errorf("after openJournal, the file contains %[2]q (error %[3]v), want %[1]q", content, left, err)
		}
	}
}

// fullDisk is a file on a disk without enough space for a complete write while full is set.
type fullDisk struct {
	*os.File
	full bool
}

func (d *fullDisk) Write(p []byte) (int, error) {
	if !d.full {
		return d.File.Write(p)
	}
	d.full = false
	n, err := d.File.Write(p[:len(p)/2])
	return n, errors.Join(err, syscall.ENOSPC)
}

// After a disk was full for a while, the journal contains no incomplete line.
func TestJournalOnAFullDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	j, err := openJournal(path, "x")
	if err != nil {
		t.Fatal(err)
	}
	disk := &fullDisk{File: j.f.(*os.File), full: true}
	j.f = disk
	if err := j.sent(table.ID{Due: 1, Ref: []byte{1}}); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("got %v, want syscall.ENOSPC", err)
	}
	if err := errors.Join(j.deleted(), j.sent(table.ID{Due: 2, Ref: []byte{2}}), j.close()); err != nil {
		t.Error(err)
	}
	if j, err = openJournal(path, "x"); err != nil {
		t.Fatal(err)
	}
	if len(j.pending) != 1 || j.pending[0].Due != 2 {
		t.Errorf("got the pending messages %v, want one that is due at 2", j.pending)
	}
	if err := j.close(); err != nil {
		t.Error(err)
	}
}

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// limit is a control group that limits how much processor time its processes use together.
type limit struct {
	dir   string
	quota func(microseconds int) error
}

// period is the time in microseconds to which a quota applies. It is Linux's default.
const period = 100_000

// limited puts this process and the servers into a control group, which at first has no limit.
func (e *env) limited(ctx context.Context) (*limit, error) {
	l, err := newLimit(fmt.Sprintf("rabbitdelay-compare-%d", os.Getpid()))
	if err != nil {
		return nil, fmt.Errorf("limiting processors requires root on Linux: %w", err)
	}
	all, err := readProcesses()
	if err != nil {
		return nil, errors.Join(err, l.close())
	}
	ids := []int{os.Getpid()}
	for s := range e.versions {
		root, err := e.root(ctx, all, s)
		if err != nil {
			return nil, errors.Join(err, l.close())
		}
		ids = append(ids, all.tree(root)...)
	}
	for _, id := range ids {
		if err := l.add(id); err != nil && !errors.Is(err, os.ErrNotExist) { // it may have ended
			return nil, errors.Join(err, l.close())
		}
	}
	return l, nil
}

// newLimit creates a control group of version 1 or 2, whichever the machine uses for processors.
func newLimit(name string) (*limit, error) {
	const v1, v2 = "/sys/fs/cgroup/cpu", "/sys/fs/cgroup"
	write := func(value string, path ...string) error {
		return os.WriteFile(filepath.Join(path...), []byte(value), 0o644)
	}
	if _, err := os.Stat(filepath.Join(v1, "cpu.cfs_quota_us")); err == nil {
		l := &limit{dir: filepath.Join(v1, name)}
		l.quota = func(us int) error { return write(strconv.Itoa(us), l.dir, "cpu.cfs_quota_us") }
		return l, os.Mkdir(l.dir, 0o755)
	}
	if err := write("+cpu", v2, "cgroup.subtree_control"); err != nil {
		return nil, err
	}
	l := &limit{dir: filepath.Join(v2, name)}
	l.quota = func(us int) error {
		value := strconv.Itoa(us)
		if us < 0 {
			value = "max"
		}
		return write(fmt.Sprintf("%s %d", value, period), l.dir, "cpu.max")
	}
	return l, os.Mkdir(l.dir, 0o755)
}

func (l *limit) add(id int) error {
	return os.WriteFile(filepath.Join(l.dir, "cgroup.procs"), []byte(strconv.Itoa(id)), 0o644)
}

// within calls do while all processes together may use the given number of processors.
func (l *limit) within(processors float64, do func() error) error {
	if err := l.quota(int(processors * period)); err != nil {
		return err
	}
	err := do()
	return errors.Join(err, l.quota(-1))
}

// close moves the processes back to the parent group, and removes the group.
func (l *limit) close() error {
	text, err := os.ReadFile(filepath.Join(l.dir, "cgroup.procs"))
	if err != nil {
		return err
	}
	parent := &limit{dir: filepath.Dir(l.dir)}
	for field := range strings.FieldsSeq(string(text)) {
		id, err := strconv.Atoi(field)
		if err != nil {
			return err
		}
		_ = parent.add(id) // it may have ended
	}
	return os.Remove(l.dir)
}

package faults_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rabbitdelay/rabbitdelay/integration/broker"
	"github.com/rabbitdelay/rabbitdelay/integration/faults"
	"github.com/rabbitdelay/rabbitdelay/integration/guard"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// disk is a separate file system.
type disk struct {
	dir  string   // where it is mounted
	args []string // arguments of mount before the directory
}

// newDisk mounts a disk until the test ends. It skips the test if that is impossible.
func newDisk(t *testing.T, args ...string) *disk {
	t.Helper()
	skipIfAsked(t)
	d := &disk{dir: t.TempDir(), args: args}
	g, err := guard.New()
	if err == nil {
		err = g.Directory(d.dir)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := d.mount(); err != nil {
		t.Skipf("skipped: no file system can be mounted here: %v", errors.Join(err, g.Dismiss()))
	}
	t.Cleanup(func() {
		_ = d.unmount() // a power cut may have ended halfway
		if err := g.Dismiss(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func (d *disk) mount() error { return command("mount", append(d.args, d.dir)...) }

func (d *disk) unmount() error { return command("umount", d.dir) }

func command(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, out)
	}
	return nil
}

// powered is a broker whose Kill simulates a power failure: data that was not synced to the disk is
// lost.
type powered struct {
	faults.Brokers
	disk *disk
}

func (p powered) Kill(ctx context.Context, i int) error {
	if err := p.mark(); err != nil {
		return err
	}
	root, err := os.Open(p.disk.dir)
	if err != nil {
		return err
	}
	const shutdown, noLogFlush = 0x8004587d, 2 // EXT4_IOC_SHUTDOWN, EXT4_GOING_FLAGS_NOLOGFLUSH
	err = errors.Join(unix.IoctlSetPointerInt(int(root.Fd()), shutdown, noLogFlush), root.Close())
	return errors.Join(err, p.Brokers.Kill(ctx, i), p.disk.unmount())
}

func (p powered) Start(ctx context.Context, i int) error {
	if err := p.disk.mount(); err != nil {
		return err
	}
	synced, err := os.ReadFile(filepath.Join(p.disk.dir, "synced"))
	if errors.Is(err, unix.EIO) && ctx.Err() == nil {
		// A container that was created between the cut and the mount still uses the old file system, which answers with EIO.
		// Unmount it, and try again.
		if err := p.disk.unmount(); err != nil {
			return err
		}
		<-time.After(100 * time.Millisecond)
		return p.Start(ctx, i)
	}
	if err != nil {
		return err
	}
	// If no data was lost at the power failure, the test would prove nothing.
	written, err := os.ReadFile(filepath.Join(p.disk.dir, "written"))
	if len(synced) == 0 || len(written) > 0 || err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("after a loss of power %d synced bytes and %d others are there, want some and none (%w)", len(synced), len(written), err)
	}
	return p.Brokers.Start(ctx, i)
}

// mark writes two files, one of which must survive the power failure.
func (p powered) mark() error {
	for _, name := range []string{"synced", "written"} {
		f, err := os.Create(filepath.Join(p.disk.dir, name))
		if err != nil {
			return err
		}
		_, err = f.WriteString(name)
		if err == nil && name == "synced" {
			err = f.Sync()
		}
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// The power fails while messages are being sent and are waiting. `-queue-type classic` shows what is lost without
// quorum queues.
func TestPowerLoss(t *testing.T) {
	t.Parallel()
	skipIfAsked(t)
	image := filepath.Join(t.TempDir(), "disk")
	err := os.WriteFile(image, nil, 0o600)
	if err == nil {
		err = os.Truncate(image, 1<<30)
	}
	if err == nil {
		err = command("mkfs.ext4", "-q", "-F", image)
	}
	if err != nil {
		t.Skipf("skipped: no file system can be made here: %v", err)
	}
	d := newDisk(t, "-o", "loop", image)
	b := node(t, broker.Options{Version: *version, Data: d.dir, Durable: true})
	unix.Sync() // a broker does not sync its cookie at its first start
	cfg := faults.Config{
		Name: "power loss", Brokers: powered{b, d},
		Strategy: faults.Strategy{Name: "bucket", QueueType: topology.QueueType(*queueType)},
		Seed:     *seed, Duration: *duration / 2, Rate: *rate, Kinds: []faults.Kind{faults.Kill},
	}
	r := run(t, cfg)
	if mustBeSafe(cfg.Strategy) {
		promised(t, r)
	}
}

// filled is a broker whose Pause fills its disk. Resume frees the space and restarts the broker, because from 4.3 on
// the broker has stopped by itself, and before that some of its queues have stopped delivering.
type filled struct {
	faults.Brokers
	disk *disk
}

func (f filled) Pause(context.Context, int) error {
	filler, err := os.Create(f.filler())
	for page := make([]byte, os.Getpagesize()); err == nil; {
		_, err = filler.Write(page)
	}
	if !errors.Is(err, unix.ENOSPC) {
		return err
	}
	return filler.Close()
}

func (f filled) Resume(ctx context.Context, i int) error {
	return errors.Join(os.Remove(f.filler()), f.Stop(ctx, i), f.Start(ctx, i))
}

func (f filled) filler() string { return filepath.Join(f.disk.dir, "filler") }

// The disk becomes full while messages are being sent and are waiting, without an earlier alarm.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	d := newDisk(t, "-t", "tmpfs", "-o", "size=256m", "none")
	b := node(t, broker.Options{Version: *version, Data: d.dir, Config: "disk_free_limit.absolute = 1MB"})
	promised(t, run(t, faults.Config{
		Name: "disk full", Brokers: filled{b, d}, Strategy: faults.Strategy{Name: "bucket", QueueType: topology.Quorum},
		Seed: *seed, Duration: *duration / 2, Rate: *rate, Kinds: []faults.Kind{faults.Freeze},
	}))
}

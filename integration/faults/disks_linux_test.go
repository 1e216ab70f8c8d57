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

// disk is a file system of its own for a broker's data.
type disk struct {
	dir  string   // where it is mounted
	args []string // arguments of mount before the directory
}

// newDisk mounts a disk until the test ends. It skips the test if it cannot mount one.
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
		t.Skipf("skipped: no file system can be mounted on this machine: %v", errors.Join(err, g.Dismiss()))
	}
	t.Cleanup(func() {
		_ = d.unmount() // a simulated power failure may have failed halfway
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
		// A container that was created between the power failure and the mount still uses the old file system, which
		// returns EIO. Unmount it, and try again.
		if err := p.disk.unmount(); err != nil {
			return err
		}
		<-time.After(100 * time.Millisecond)
		return p.Start(ctx, i)
	}
	if err != nil {
		return err
	}
	// The test is meaningful only if the power failure has lost data that was not synced.
	written, err := os.ReadFile(filepath.Join(p.disk.dir, "written"))
	if len(synced) == 0 || len(written) > 0 || err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("after the power failure, %d synced and %d unsynced bytes exist, want more than 0 and 0 (%w)", len(synced), len(written), err)
	}
	return p.Brokers.Start(ctx, i)
}

// mark writes two files, and syncs one of them so that it survives the power failure.
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

// The power fails while messages are being sent and while others wait. `-queue-type classic` shows which promises are
// broken without quorum queues.
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
		t.Skipf("skipped: no file system can be created on this machine: %v", err)
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

// filled is a broker. Pause fills its disk, and Resume frees the space and restarts the broker. The restart is
// necessary because on a full disk, RabbitMQ 4.3 stops, and in earlier versions some queues stop delivering.
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

// The disk fills up while messages are being sent and while others wait, without a disk alarm.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	d := newDisk(t, "-t", "tmpfs", "-o", "size=256m", "none")
	b := node(t, broker.Options{Version: *version, Data: d.dir, Config: "disk_free_limit.absolute = 1MB"})
	promised(t, run(t, faults.Config{
		Name: "disk full", Brokers: filled{b, d}, Strategy: faults.Strategy{Name: "bucket", QueueType: topology.Quorum},
		Seed: *seed, Duration: *duration / 2, Rate: *rate, Kinds: []faults.Kind{faults.Freeze},
	}))
}

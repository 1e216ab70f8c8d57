package faults

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rabbitdelay/rabbitdelay/integration/proxy"
)

// rig holds the components into which faults are injected.
type rig struct {
	brokers   Brokers
	network   *network
	consumers *consumers
	business  *business
	queues    []string // names of the delay queues that contain messages
}

const (
	// orderTime is how long an order to a consumer waits for a message.
	orderTime = 15 * time.Second
	// healTime is the maximum time to heal one fault.
	healTime = 4 * time.Minute
)

// inject causes a fault, waits for its duration, and heals it. If ctx ends, it heals the fault immediately.
func (r *rig) inject(ctx context.Context, f Fault) error {
	// Always heal a fault that has begun, even if the run is aborted.
	steady, cancel := context.WithTimeout(context.WithoutCancel(ctx), f.Hold+healTime)
	defer cancel()
	switch f.Kind {
	case Cut, Stall, HalfClose, Slow, CutConfirm, CutAck:
		r.injectNetwork(ctx, f)
		return nil
	case Restart, Kill, Down, Freeze, KillLeader, RollingRestart, Partition, FreezeNode:
		return r.injectBroker(ctx, steady, f)
	case MemoryAlarm, NodeAlarm, DiskAlarm:
		return r.injectAlarm(ctx, steady, f)
	case KillBeforeCommit, KillBeforeAck, Panic, Overrun, Pauses:
		return r.injectConsumer(ctx, f)
	default:
		return r.injectDatabase(ctx, steady, f)
	}
}

func (r *rig) injectNetwork(ctx context.Context, f Fault) {
	hit := r.network.hit(f.Aim)
	each := func(do func(*proxy.Proxy)) {
		for _, p := range hit {
			do(p)
		}
	}
	switch f.Kind {
	case Cut:
		each(func(p *proxy.Proxy) { p.Refuse(true); p.Cut() })
		wait(ctx, f.Hold)
		each(func(p *proxy.Proxy) { p.Refuse(false) })
	case Stall:
		stall := func(on bool) {
			each(func(p *proxy.Proxy) { p.Stall(proxy.ToBroker, on); p.Stall(proxy.ToClient, on) })
		}
		stall(true)
		wait(ctx, f.Hold)
		stall(false)
	case HalfClose:
		each(func(p *proxy.Proxy) { p.HalfClose(proxy.Direction(f.Aim / 3 % 2)) })
		wait(ctx, f.Hold)
	case Slow:
		each(func(p *proxy.Proxy) { p.Slow(time.Duration(10+f.Aim%90) * time.Millisecond) })
		wait(ctx, f.Hold)
		each(func(p *proxy.Proxy) { p.Slow(0) })
	default:
		hit = r.network.proxies[producing]
		at := func(x proxy.Frame) bool { return x.Is(proxy.ToClient, proxy.BasicAck) }
		if f.Kind == CutAck {
			hit = r.network.proxies[consuming]
			at = func(x proxy.Frame) bool { return x.Is(proxy.ToBroker, proxy.BasicAck) }
		}
		each(func(p *proxy.Proxy) { p.CutAt(at) })
		wait(ctx, f.Hold)
		each(func(p *proxy.Proxy) { p.CutAt(nil) })
	}
}

func (r *rig) injectBroker(ctx, steady context.Context, f Fault) error {
	b, i := r.brokers, f.Aim%r.brokers.Nodes()
	// between applies begin to a node, waits, and applies end.
	between := func(begin, end func(context.Context, int) error) error {
		if err := begin(steady, i); err != nil {
			return err
		}
		wait(ctx, f.Hold)
		return end(steady, i)
	}
	switch f.Kind {
	case Restart:
		return between(b.Stop, b.Start)
	case Kill, Down:
		return between(b.Kill, b.Start)
	case Freeze, FreezeNode:
		return between(b.Pause, b.Resume)
	}
	d, ok := b.(divided)
	if !ok {
		return fmt.Errorf("%s needs a cluster", f.Kind)
	}
	switch f.Kind {
	case Partition:
		return between(d.Leave, d.Join)
	case KillLeader:
		leader, err := d.Leader(steady, i, r.queues[f.Aim%len(r.queues)])
		if err != nil {
			return err
		}
		i = leader
		return between(b.Kill, b.Start)
	default:
		for i = range b.Nodes() {
			// Like an operator, wait until the cluster can do without this node.
			if _, err := b.Ctl(steady, i, "--silent", "eval", "rabbit_upgrade_preparation:await_online_quorum_plus_one(60000)."); err != nil {
				return err
			}
			if err := between(b.Stop, b.Start); err != nil {
				return err
			}
		}
		return nil
	}
}

func (r *rig) injectAlarm(ctx, steady context.Context, f Fault) error {
	i := f.Aim % r.brokers.Nodes()
	raise := []string{"set_vm_memory_high_watermark", "absolute", "1MB"}
	lower := []string{"set_vm_memory_high_watermark", "0.6"}
	if f.Kind == DiskAlarm {
		raise, lower = []string{"set_disk_free_limit", "1000000GB"}, []string{"set_disk_free_limit", "50MB"}
	}
	if _, err := r.brokers.Ctl(steady, i, raise...); err != nil {
		return err
	}
	wait(ctx, f.Hold)
	_, err := r.brokers.Ctl(steady, i, lower...)
	return err
}

func (r *rig) injectConsumer(ctx context.Context, f Fault) error {
	tell := func(what string) (<-chan struct{}, error) {
		// A process that is currently being replaced does not accept orders.
		for {
			ended, err := r.consumers.order(f.Aim, what)
			if err == nil || ctx.Err() != nil {
				return ended, err
			}
			wait(ctx, 100*time.Millisecond)
		}
	}
	order := map[Kind]string{
		KillBeforeCommit: orderDieBeforeCommit, KillBeforeAck: orderDieBeforeAck, Panic: orderPanic, Overrun: orderOverrun, Pauses: orderPause,
	}[f.Kind]
	ended, err := tell(order)
	if err == nil && f.Kind == Pauses {
		wait(ctx, f.Hold)
	}
	if err != nil || f.Kind == Panic || f.Kind == Pauses {
		return err
	}
	if f.Kind == Overrun {
		wait(ctx, 2*time.Second) // until a message has arrived
		if ended, err = tell(orderStop); err != nil {
			return err
		}
	}
	timer := time.NewTimer(orderTime)
	defer timer.Stop()
	select {
	case <-ended:
		return nil
	case <-timer.C: // no message arrived
	case <-ctx.Done():
	}
	r.consumers.kill(f.Aim)
	return nil
}

func (r *rig) injectDatabase(ctx, steady context.Context, f Fault) error {
	b := r.business
	switch f.Kind {
	case LockTable:
		return b.lockTable(ctx, f.Hold)
	case Conflict:
		return b.conflict(ctx, f.Hold)
	case LoseCommit, LoseAnswer:
		b.wire.cutAt(f.Kind)
		wait(ctx, f.Hold)
		b.wire.cutAt("")
		return nil
	case DatabaseRestart, DatabaseKill:
		stop := b.server.Stop
		if f.Kind == DatabaseKill {
			stop = func(context.Context) error { return b.server.Kill() }
		}
		if err := stop(steady); err != nil {
			return err
		}
		wait(ctx, f.Hold)
		return b.server.Start(steady)
	default:
		return errors.New("unknown kind of fault: " + string(f.Kind))
	}
}

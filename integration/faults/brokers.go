package faults

import (
	"context"

	"github.com/rabbitdelay/rabbitdelay/integration/broker"
	"github.com/rabbitdelay/rabbitdelay/integration/proxy"
)

// Brokers is the broker or the cluster of a run. It is implemented by *cluster.Cluster.
type Brokers interface {
	Nodes() int
	URLs() []string
	Version() string

	Stop(ctx context.Context, i int) error
	Kill(ctx context.Context, i int) error
	Start(ctx context.Context, i int) error // also waits until the node accepts connections
	Pause(ctx context.Context, i int) error
	Resume(ctx context.Context, i int) error
	Ctl(ctx context.Context, i int, args ...string) (string, error)
	Close() error
}

// divided is the set of methods that only a cluster has.
type divided interface {
	Leader(ctx context.Context, from int, queue string) (int, error)
	Leave(ctx context.Context, i int) error
	Join(ctx context.Context, i int) error
}

// OneNode returns a single broker as Brokers for a run.
func OneNode(b *broker.Broker) Brokers { return oneNode{b} }

type oneNode struct{ *broker.Broker }

func (o oneNode) Nodes() int                              { return 1 }
func (o oneNode) URLs() []string                          { return []string{o.URL()} }
func (o oneNode) Stop(ctx context.Context, _ int) error   { return o.Broker.Stop(ctx) }
func (o oneNode) Kill(ctx context.Context, _ int) error   { return o.Broker.Kill(ctx) }
func (o oneNode) Start(ctx context.Context, _ int) error  { return o.Broker.Start(ctx) }
func (o oneNode) Pause(ctx context.Context, _ int) error  { return o.Broker.Pause(ctx) }
func (o oneNode) Resume(ctx context.Context, _ int) error { return o.Broker.Resume(ctx) }
func (o oneNode) Ctl(ctx context.Context, _ int, args ...string) (string, error) {
	return o.Broker.Ctl(ctx, args...)
}

// side is the kind of clients that a network fault affects.
type side int

const (
	producing side = iota
	consuming
)

// network holds a proxy in front of each node for each side.
type network struct {
	proxies [2][]*proxy.Proxy
	urls    [2][]string // the nodes' URLs through the proxies
}

func newNetwork(b Brokers) (*network, error) {
	n := &network{}
	for _, s := range []side{producing, consuming} {
		for _, raw := range b.URLs() {
			p, through, err := proxy.ForURL(raw)
			if err != nil {
				n.close()
				return nil, err
			}
			n.proxies[s] = append(n.proxies[s], p)
			n.urls[s] = append(n.urls[s], through)
		}
	}
	return n, nil
}

func (n *network) close() {
	for _, s := range n.proxies {
		for _, p := range s {
			p.Close()
		}
	}
}

// from returns the nodes' URLs for a side. The first URL depends on i, so that clients start with different nodes.
func (n *network) from(s side, i int) []string {
	urls := n.urls[s]
	at := i % len(urls)
	return append(append([]string(nil), urls[at:]...), urls[:at]...)
}

// hit returns the proxies that a fault affects: those of producers, of consumers, or of both.
func (n *network) hit(aim int) []*proxy.Proxy {
	switch aim % 3 {
	case 0:
		return n.proxies[producing]
	case 1:
		return n.proxies[consuming]
	default:
		return append(append([]*proxy.Proxy(nil), n.proxies[producing]...), n.proxies[consuming]...)
	}
}

// cuts returns how many connections were cut, at a frame or by Cut.
func (n *network) cuts() int {
	total := 0
	for _, s := range n.proxies {
		for _, p := range s {
			total += p.Cuts()
		}
	}
	return total
}

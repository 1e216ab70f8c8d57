// Package cluster starts a RabbitMQ cluster of containers on a private network. Tests can stop, kill, freeze and
// isolate its nodes. Clients reach the nodes on ports of 127.0.0.1 even while a node is isolated from the others, as in
// a partition that clients do not notice. A cluster does not outlive the process.
package cluster

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	dockercontainer "github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"

	"github.com/rabbitdelay/rabbitdelay/integration/broker"
	"github.com/rabbitdelay/rabbitdelay/integration/guard"
	"github.com/rabbitdelay/rabbitdelay/integration/loopback"
)

// ErrUnavailable is wrapped if this machine cannot run a cluster, because Docker does not answer or the image is
// missing.
var ErrUnavailable = errors.New("no cluster can be started on this machine")

// Options configures a cluster.
type Options struct {
	// Version is the release line. Default 4.3. Its image must have been built by `make images`.
	Version string
	// Nodes is the number of nodes. Default 3.
	Nodes int
	// TickTime is how long a node may be silent before another node considers it down. Default 15 s. RabbitMQ's own
	// default is 60 s.
	TickTime time.Duration
	// Advanced is the nodes' advanced.config, in Erlang terms. Default: none.
	Advanced string
	// Ahead is how far the clocks of the first nodes are ahead, in whole seconds. It requires broker.FaketimeAvailable.
	Ahead []time.Duration
	// Log receives a line when the cluster is up. Default: the line is dropped.
	Log func(line string)
}

const (
	startup   = 5 * time.Minute
	removal   = time.Minute
	pollEvery = 200 * time.Millisecond
	amqpPort  = "5672/tcp"
)

// Cluster is a running cluster. Its methods are safe for concurrent use by callers that work on different nodes.
type Cluster struct {
	provider *testcontainers.DockerProvider
	docker   client.APIClient
	guard    *guard.Guard
	network  string // its name; empty if it was not created
	nodes    []*node
	version  string
}

// node is one container.
type node struct {
	container string // its name
	host      string // its name on the private network
	url       string
	running   testcontainers.Container
}

// Start starts a cluster and returns when all its nodes know each other and accept connections. The error wraps
// ErrUnavailable if this machine cannot run a cluster.
func Start(ctx context.Context, o Options) (_ *Cluster, err error) {
	if o.Version == "" {
		o.Version = "4.3"
	}
	if o.Nodes == 0 {
		o.Nodes = 3
	}
	if o.TickTime == 0 {
		o.TickTime = 15 * time.Second
	}
	provider, err := broker.Docker(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	c := &Cluster{provider: provider, docker: provider.Client()}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	image, err := broker.LocalImage(ctx, provider, o.Version)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	if c.guard, err = guard.New(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startup)
	defer cancel()
	name := "rabbitdelay-" + strconv.Itoa(os.Getpid()) + "-" + strings.ToLower(rand.Text()[:8])
	if err := c.createNetwork(ctx, name); err != nil {
		return nil, err
	}
	if err := c.createNodes(ctx, name, image, o); err != nil {
		return nil, err
	}
	for i := range c.nodes {
		if err := c.nodes[i].running.Start(ctx); err != nil {
			return nil, fmt.Errorf("cluster: start node %d: %w", i, err)
		}
	}
	for i := range c.nodes {
		if err := c.WaitReady(ctx, i); err != nil {
			return nil, err
		}
	}
	if err := waitFormed(ctx, len(c.nodes), func(i int, args ...string) (string, error) { return c.Ctl(ctx, i, args...) }); err != nil {
		return nil, err
	}
	if o.Log != nil {
		o.Log(fmt.Sprintf("cluster: %d nodes of RabbitMQ %s in containers of %s", len(c.nodes), c.version, image.Name))
	}
	return c, nil
}

func (c *Cluster) createNetwork(ctx context.Context, name string) error {
	if err := c.guard.Network(name); err != nil {
		return err
	}
	_, err := c.docker.NetworkCreate(ctx, name, client.NetworkCreateOptions{
		Driver: "bridge", Labels: map[string]string{"rabbitdelay": "cluster"},
	})
	if err != nil {
		return fmt.Errorf("%w: network: %w", ErrUnavailable, err)
	}
	c.network = name
	return nil
}

// createNodes creates the containers. Each is connected to two networks: clients reach it on Docker's default network,
// and nodes reach each other on the private network.
func (c *Cluster) createNodes(ctx context.Context, name string, image broker.Image, o Options) error {
	ports, err := loopback.Ports(o.Nodes)
	if err != nil {
		return err
	}
	conf := []string{
		"cluster_formation.peer_discovery_backend = classic_config",
		fmt.Sprintf("cluster_formation.target_cluster_size_hint = %d", o.Nodes),
	}
	for i := range o.Nodes {
		conf = append(conf, fmt.Sprintf("cluster_formation.classic_config.nodes.%d = rabbit@%s", i+1, host(i)))
	}
	// A reader can be read only once, so every node needs its own.
	files := func(i int) []testcontainers.ContainerFile {
		list := []testcontainers.ContainerFile{
			file("/etc/rabbitmq/conf.d/90-cluster.conf", strings.Join(conf, "\n")+"\n"),
			file("/etc/rabbitmq/enabled_plugins", "[].\n"),
		}
		if o.Advanced != "" {
			list = append(list, file("/etc/rabbitmq/advanced.config", o.Advanced))
		}
		preload := broker.Hasty()
		if i < len(o.Ahead) && o.Ahead[i] != 0 {
			path, _ := broker.FaketimeAvailable()
			preload = preload.With(broker.ClockAhead(path, o.Ahead[i]))
		}
		return append(list, preload.ContainerFiles()...)
	}
	secret := rand.Text()
	for i := range o.Nodes {
		n := &node{
			container: name + "-" + host(i), host: host(i),
			url: "amqp://guest:guest@" + loopback.Address(ports[i]) + "/",
		}
		if err := c.guard.Container(n.container); err != nil {
			return err
		}
		c.nodes = append(c.nodes, n)
		published := network.PortMap{network.MustParsePort(amqpPort): {{
			HostIP: netip.MustParseAddr(loopback.Host), HostPort: strconv.Itoa(ports[i]),
		}}}
		n.running, err = c.provider.CreateContainer(ctx, testcontainers.ContainerRequest{
			Image:        image.Name,
			Name:         n.container,
			Labels:       map[string]string{"rabbitdelay": "cluster"},
			ExposedPorts: []string{amqpPort},
			Env: map[string]string{
				"RABBITMQ_NODENAME":      "rabbit@" + n.host,
				"RABBITMQ_ERLANG_COOKIE": secret,
				"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": fmt.Sprintf("-kernel net_ticktime %d",
					max(1, int(o.TickTime/time.Second))),
			},
			Files:              files(i),
			ConfigModifier:     func(c *dockercontainer.Config) { c.Hostname = n.host },
			HostConfigModifier: func(h *dockercontainer.HostConfig) { h.PortBindings, h.Binds = published, image.Binds },
		})
		if err != nil {
			return fmt.Errorf("cluster: create node %d: %w", i, err)
		}
		if err := c.Join(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

func host(i int) string { return "n" + strconv.Itoa(i+1) }

func file(path, content string) testcontainers.ContainerFile {
	return testcontainers.ContainerFile{Reader: strings.NewReader(content), ContainerFilePath: path, FileMode: 0o644}
}

// Nodes returns the number of nodes.
func (c *Cluster) Nodes() int { return len(c.nodes) }

// URLs returns the AMQP URLs of the nodes, with the password.
func (c *Cluster) URLs() []string {
	urls := make([]string, len(c.nodes))
	for i, n := range c.nodes {
		urls[i] = n.url
	}
	return urls
}

// Container returns the name of a node's container.
func (c *Cluster) Container(i int) string { return c.nodes[i].container }

// Version returns the version that the nodes report, such as 4.3.6.
func (c *Cluster) Version() string { return c.version }

// Close removes the containers and the network.
func (c *Cluster) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), removal)
	defer cancel()
	var errs []error
	for _, n := range c.nodes {
		errs = append(errs, c.remove(ctx, n))
	}
	if c.network != "" {
		if _, err := c.docker.NetworkRemove(ctx, c.network, client.NetworkRemoveOptions{}); err != nil {
			errs = append(errs, fmt.Errorf("network %s: %w", c.network, err))
		}
	}
	if err := errors.Join(append(errs, c.provider.Close())...); err != nil {
		// Keep the guard running, because it tries again when the process ends.
		return fmt.Errorf("cluster: cleanup was incomplete: %w", err)
	}
	if c.guard == nil {
		return nil
	}
	return c.guard.Dismiss()
}

package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	dockercontainer "github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	amqp "github.com/rabbitmq/amqp091-go"
	tcexec "github.com/testcontainers/testcontainers-go/exec"
)

// Stop stops a node gracefully. The node keeps its data and its port for Start.
func (c *Cluster) Stop(ctx context.Context, i int) error {
	_, err := c.docker.ContainerStop(ctx, c.nodes[i].container, client.ContainerStopOptions{})
	return explain(i, "stop", err)
}

// Kill kills a node, which simulates a crash.
func (c *Cluster) Kill(ctx context.Context, i int) error {
	name := c.nodes[i].container
	if _, err := c.docker.ContainerKill(ctx, name, client.ContainerKillOptions{Signal: "KILL"}); err != nil {
		return explain(i, "kill", err)
	}
	// The signal is asynchronous. Without waiting, Start could find the container still running.
	wait := c.docker.ContainerWait(ctx, name, client.ContainerWaitOptions{Condition: dockercontainer.WaitConditionNotRunning})
	select {
	case err := <-wait.Error:
		return explain(i, "kill", err)
	case <-wait.Result:
		return nil
	}
}

// Start starts a node after Stop or Kill and returns when it accepts connections. A node of a cluster only starts
// together with a majority of the nodes.
func (c *Cluster) Start(ctx context.Context, i int) error {
	if _, err := c.docker.ContainerStart(ctx, c.nodes[i].container, client.ContainerStartOptions{}); err != nil {
		return explain(i, "start", err)
	}
	return c.WaitReady(ctx, i)
}

// Pause freezes a node. Its connections stay open.
func (c *Cluster) Pause(ctx context.Context, i int) error {
	_, err := c.docker.ContainerPause(ctx, c.nodes[i].container, client.ContainerPauseOptions{})
	return explain(i, "pause", err)
}

// Resume undoes Pause.
func (c *Cluster) Resume(ctx context.Context, i int) error {
	_, err := c.docker.ContainerUnpause(ctx, c.nodes[i].container, client.ContainerUnpauseOptions{})
	return explain(i, "resume", err)
}

// Leave isolates a node from the other nodes. Clients can still reach it.
func (c *Cluster) Leave(ctx context.Context, i int) error {
	_, err := c.docker.NetworkDisconnect(ctx, c.network, client.NetworkDisconnectOptions{Container: c.nodes[i].container})
	return explain(i, "isolate", err)
}

// Join undoes Leave.
func (c *Cluster) Join(ctx context.Context, i int) error {
	n := c.nodes[i]
	_, err := c.docker.NetworkConnect(ctx, c.network, client.NetworkConnectOptions{
		Container:      n.container,
		EndpointConfig: &network.EndpointSettings{Aliases: []string{n.host}},
	})
	return explain(i, "join", err)
}

// Mute drops everything that a node sends to the other nodes. The node still receives from them. This requires root,
// nsenter and iptables.
func (c *Cluster) Mute(ctx context.Context, i int) error {
	return explain(i, "mute", c.filter(ctx, i, "--append"))
}

// Unmute undoes Mute.
func (c *Cluster) Unmute(ctx context.Context, i int) error {
	return explain(i, "unmute", c.filter(ctx, i, "--delete"))
}

// filter adds or deletes the rule that drops a node's packets to the other nodes.
func (c *Cluster) filter(ctx context.Context, i int, change string) error {
	looked, err := c.docker.ContainerInspect(ctx, c.nodes[i].container, client.ContainerInspectOptions{})
	if err != nil {
		return err
	}
	at := looked.Container.NetworkSettings.Networks[c.network]
	if at == nil {
		return errors.New("it is isolated from the others")
	}
	out, err := exec.CommandContext(ctx, "nsenter", fmt.Sprintf("--net=/proc/%d/ns/net", looked.Container.State.Pid),
		"iptables", "--wait", change, "OUTPUT", "--destination", netip.PrefixFrom(at.IPAddress, at.IPPrefixLen).String(), "--jump", "DROP",
	).CombinedOutput()
	if err != nil {
		return fmt.Errorf("nsenter: %w: %s", err, out)
	}
	return nil
}

// Ctl runs rabbitmqctl on a node and returns what it printed.
func (c *Cluster) Ctl(ctx context.Context, i int, args ...string) (string, error) {
	code, reader, err := c.nodes[i].running.Exec(ctx, append([]string{"rabbitmqctl"}, args...), tcexec.Multiplexed())
	if err != nil {
		return "", explain(i, "rabbitmqctl", err)
	}
	out, err := io.ReadAll(reader)
	if err == nil && code != 0 {
		err = fmt.Errorf("exit status %d: %s", code, strings.TrimSpace(string(out)))
	}
	return string(out), explain(i, "rabbitmqctl "+strings.Join(args, " ")+" on", err)
}

// Leader returns the node that leads a quorum queue, as reported by the node from.
func (c *Cluster) Leader(ctx context.Context, from int, queue string) (int, error) {
	return leader(func(args ...string) (string, error) { return c.Ctl(ctx, from, args...) }, queue, func(name string) int {
		return slices.IndexFunc(c.nodes, func(n *node) bool { return name == "rabbit@"+n.host })
	})
}

// leader implements Leader with the given rabbitmqctl. The function number returns the index of a node by its name, or
// -1.
func leader(ctl func(args ...string) (string, error), queue string, number func(name string) int) (int, error) {
	out, err := ctl("--silent", "list_queues", "--formatter", "json", "name", "leader")
	if err != nil {
		return 0, err
	}
	var queues []struct {
		Name   string `json:"name"`
		Leader string `json:"leader"`
	}
	if err := json.Unmarshal([]byte(out), &queues); err != nil {
		return 0, fmt.Errorf("cluster: list_queues: the output is not valid JSON: %w", err)
	}
	for _, q := range queues {
		if q.Name != queue {
			continue
		}
		if i := number(q.Leader); i >= 0 {
			return i, nil
		}
		return 0, fmt.Errorf("cluster: queue %s has the leader %q, which is not a node of this cluster", queue, q.Leader)
	}
	return 0, fmt.Errorf("cluster: there is no queue %s", queue)
}

// WaitReady waits until a node accepts connections.
func (c *Cluster) WaitReady(ctx context.Context, i int) error {
	ctx, cancel := context.WithTimeout(ctx, startup)
	defer cancel()
	return poll(ctx, fmt.Sprintf("node %d does not accept connections", i), func() error {
		conn, err := amqp.DialConfig(c.nodes[i].url, amqp.Config{
			Dial: amqp.DefaultDial(5 * time.Second), Properties: amqp.Table{"connection_name": "rabbitdelay launcher"},
		})
		if err != nil {
			return err
		}
		if i == 0 && c.version == "" {
			c.version, _ = conn.Properties["version"].(string)
		}
		return conn.Close()
	})
}

// runningNodes evaluates to the number of running nodes that a node sees. It works on every version.
const runningNodes = "length([N || N <- [node() | nodes()], rabbit:is_running(N)])."

// waitFormed waits until each of the n nodes sees all n nodes.
func waitFormed(ctx context.Context, n int, ctl func(i int, args ...string) (string, error)) error {
	return poll(ctx, "the nodes do not find each other", func() error {
		for i := range n {
			out, err := ctl(i, "--silent", "eval", runningNodes)
			if err != nil {
				return err
			}
			if got := strings.TrimSpace(out); got != fmt.Sprint(n) {
				return fmt.Errorf("node %d sees %s running nodes, want %d", i, got, n)
			}
		}
		return nil
	})
}

func poll(ctx context.Context, what string, try func() error) error {
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("cluster: %s: %w; the last attempt: %w", what, ctx.Err(), err)
		case <-ticker.C:
		}
	}
}

func (c *Cluster) remove(ctx context.Context, n *node) error {
	_, err := c.docker.ContainerRemove(ctx, n.container, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("container %s: %w", n.container, err)
	}
	return nil
}

func explain(i int, what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("cluster: %s node %d: %w", what, i, err)
}

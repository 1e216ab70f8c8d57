package snapshot

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/topology/doctor"
	"github.com/rabbitdelay/rabbitdelay/topology/live"
)

// get reads one thing from the management API. What the user may not read, or a
// version does not have, is no error: it stays unknown.
func (c *collector) get(ctx context.Context, path string, out any) bool {
	x, err := c.src.Management.Call(ctx, http.MethodGet, path, nil, out)
	if !x.Date.IsZero() {
		// The times of the exchange are this machine's; a test may have set Now off.
		off := time.Until(c.src.Now())
		c.clocks[methodDate] = append(c.clocks[methodDate], dateReading(x.Sent.Add(off), x.Received.Add(off), x.Date))
	}
	if err != nil && !live.IsDenied(err) && ctx.Err() == nil {
		c.unseenf(doctor.AreaManagement, "the management API did not answer %s: %s", path, oneLine(err))
	}
	return err == nil
}

// management reads what only the management API has.
func (c *collector) management(ctx context.Context) error {
	if !c.managed {
		return nil
	}
	var overview struct {
		Types []struct {
			Name string `json:"name"`
		} `json:"exchange_types"`
	}
	if c.get(ctx, "/api/overview", &overview) {
		c.snap.ExchangeTypes = []string{}
		for _, t := range overview.Types {
			c.snap.ExchangeTypes = append(c.snap.ExchangeTypes, t.Name)
		}
	}
	c.queues(ctx)
	c.nodes(ctx)
	c.flags(ctx)
	c.alarms(ctx)
	c.connections(ctx)
	return nil
}

func (c *collector) queues(ctx context.Context) {
	var list []struct {
		Name       string   `json:"name"`
		Members    []string `json:"members"`
		Online     []string `json:"online"`
		Node       string   `json:"node"`
		Leader     string   `json:"leader"`
		State      string   `json:"state"`
		Messages   int64    `json:"messages"`
		Ready      int64    `json:"messages_ready"`
		Unacked    int64    `json:"messages_unacknowledged"`
		Delayed    int64    `json:"messages_delayed"` // that wait for an instant
		ReadyBytes int64    `json:"message_bytes_ready"`
	}
	path := c.src.Management.InVhost("queues") + "?columns=name,members,online,node,leader,state,messages,messages_ready,messages_unacknowledged,messages_delayed,message_bytes_ready"
	if !c.get(ctx, path, &list) {
		return
	}
	c.snap.Queues = make(map[string]doctor.QueueState, len(list))
	for _, q := range list {
		node := q.Node
		if node == "" {
			node = q.Leader
		}
		c.snap.Queues[q.Name] = doctor.QueueState{
			Members: q.Members, Online: q.Online, Node: node, State: q.State,
			Ready: q.Ready + q.Delayed, Unacked: q.Unacked, Leaving: max(0, q.Messages-q.Ready-q.Unacked-q.Delayed), ReadyBytes: q.ReadyBytes,
		}
	}
}

// nodes are listed for users with the tag monitoring; others see those that have
// queues.
func (c *collector) nodes(ctx context.Context) {
	var list []struct {
		Name       string   `json:"name"`
		Running    bool     `json:"running"`
		Partitions []string `json:"partitions"`
		Memory     bool     `json:"mem_alarm"`
		Disk       bool     `json:"disk_free_alarm"`
		Files      []string `json:"config_files"` // absent of a node that is down
	}
	if c.get(ctx, "/api/nodes?columns=name,running,partitions,mem_alarm,disk_free_alarm,config_files", &list) {
		c.snap.NodesComplete = true
		for _, n := range list {
			c.snap.Nodes = append(c.snap.Nodes, doctor.Node{
				Name: n.Name, Running: n.Running, Partitions: n.Partitions, ConfigFiles: n.Files, FilesKnown: n.Files != nil,
			})
		}
		return
	}
	var names []string
	for _, q := range c.snap.Queues {
		names = append(names, q.Members...)
		if q.Node != "" {
			names = append(names, q.Node)
		}
	}
	slices.Sort(names)
	for _, n := range slices.Compact(names) {
		c.snap.Nodes = append(c.snap.Nodes, doctor.Node{Name: n})
	}
}

func (c *collector) flags(ctx context.Context) {
	var list []struct {
		Name  string `json:"name"`
		State string `json:"state"`
	}
	if !c.get(ctx, "/api/feature-flags", &list) {
		return
	}
	c.snap.Flags = make(map[string]bool, len(list))
	for _, f := range list {
		c.snap.Flags[f.Name] = f.State == "enabled"
	}
}

// alarms are a health check, which every user may read; it answers 503 with the
// alarms when there are any.
func (c *collector) alarms(ctx context.Context) {
	_, err := c.src.Management.Call(ctx, http.MethodGet, "/api/health/checks/alarms", nil, nil)
	status, ok := errors.AsType[*live.StatusError](err)
	switch {
	case err == nil:
	case ok && status.Code == http.StatusServiceUnavailable:
		var body struct {
			Alarms []struct {
				Node     string `json:"node"`
				Resource string `json:"resource"`
			} `json:"alarms"`
		}
		if err := json.Unmarshal(status.Body, &body); err != nil {
			c.unseenf(doctor.AreaAlarms, "an alarm is in effect, but its description could not be read: %s", oneLine(err))
			return
		}
		for _, a := range body.Alarms {
			c.snap.Alarms = append(c.snap.Alarms, doctor.Alarm{Node: a.Node, Resource: a.Resource})
		}
	case ctx.Err() == nil:
		c.unseenf(doctor.AreaAlarms, "alarms could not be read: %s", oneLine(err))
	}
}

// connections finds those that are blocked, rabbitdelay's, and the doctor's own,
// whose time of connecting tells the broker's clock.
func (c *collector) connections(ctx context.Context) {
	var list []struct {
		Name        string `json:"name"`
		Given       string `json:"user_provided_name"`
		State       string `json:"state"`
		ConnectedAt int64  `json:"connected_at"`
		Vhost       string `json:"vhost"`
		Client      struct {
			Product string `json:"product"`
		} `json:"client_properties"`
	}
	if !c.get(ctx, "/api/connections?columns=name,user_provided_name,state,connected_at,vhost,client_properties", &list) {
		return
	}
	c.snap.Clients = []doctor.Connection{}
	for _, k := range list {
		blocked := k.State == "blocked" || k.State == "blocking"
		own := c.src.ConnectionName != "" && strings.HasPrefix(k.Given, c.src.ConnectionName)
		if k.Client.Product == "rabbitdelay" && !own && k.Vhost == c.src.Management.Vhost() {
			c.snap.Clients = append(c.snap.Clients, doctor.Connection{Name: k.Given, Blocked: blocked})
		}
		switch {
		case own && k.ConnectedAt > 0:
			c.clocks[methodConnected] = append(c.clocks[methodConnected], connectedReading(c.dialed, c.connected, k.ConnectedAt))
		case blocked:
			name := k.Name
			if k.Given != "" {
				name = k.Given + " (" + k.Name + ")"
			}
			c.snap.BlockedConnections = append(c.snap.BlockedConnections, name)
		}
	}
}

// Counts of the management API are up to 5 s old.
const (
	recountEvery = time.Second
	recountFor   = 6 * time.Second
)

// routes counts again what waits in route queues, since messages on their way
// are there for a moment.
func (c *collector) routes(ctx context.Context) error {
	if !c.managed {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, recountFor)
	defer cancel()
	tick := time.NewTicker(recountEvery)
	defer tick.Stop()
	for {
		var busy []string
		for _, d := range c.cfg.Want.Destinations {
			if q := d.TargetQueue(c.cfg.Prefix); d.ToExchange() && c.snap.Live.Queues[q].Messages > 0 {
				busy = append(busy, q)
			}
		}
		if len(busy) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		for _, name := range busy {
			c.recount(ctx, name)
		}
	}
}

// recount keeps the lowest count seen: a queue through which messages pass is
// sometimes empty.
func (c *collector) recount(ctx context.Context, name string) {
	var now struct {
		Messages int64 `json:"messages"`
	}
	_, err := c.src.Management.Call(ctx, http.MethodGet, c.src.Management.InVhost("queues", name)+"?columns=messages", nil, &now)
	if err != nil {
		return
	}
	q := c.snap.Live.Queues[name]
	q.Messages = min(q.Messages, now.Messages)
	c.snap.Live.Queues[name] = q
}

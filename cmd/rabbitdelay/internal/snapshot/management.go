package snapshot

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/doctor"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/internal/naming"
	"github.com/rabbitdelay/rabbitdelay/internal/plan"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// get reads a path of the management API, and reports when the API answered and whether it succeeded. A path that the
// user is not allowed to read is not an error, and its data remains unknown. Other failures are added to Unchecked.
func (c *collector) get(ctx context.Context, path string, out any) (x live.RoundTrip, ok bool) {
	x, err := c.src.Management.Call(ctx, http.MethodGet, path, nil, out)
	if err != nil && !live.IsDenied(err) {
		c.uncheckedf(doctor.AreaManagement, "the management API %s when asked for %s: %s", live.Failure(err), path, oneLine(err))
	}
	return x, err == nil
}

// alongside returns a collector for the data that is read while it is still unknown whether the management API belongs
// to the broker. If it does, merge adds the data.
func (c *collector) alongside() *collector {
	return &collector{cfg: c.cfg, src: c.src, dialed: c.dialed, connected: c.connected, managed: true, clocks: map[string]map[string][]reading{}}
}

// merge adds the data of a collector from alongside.
func (c *collector) merge(o *collector) {
	c.snap.ExchangeTypes, c.snap.Flags, c.snap.Alarms = o.snap.ExchangeTypes, o.snap.Flags, o.snap.Alarms
	c.snap.Nodes, c.snap.NodesComplete = o.snap.Nodes, o.snap.NodesComplete
	c.snap.Clients, c.snap.BlockedConnections = o.snap.Clients, o.snap.BlockedConnections
	c.snap.Unchecked = append(c.snap.Unchecked, o.snap.Unchecked...)
	c.uncounted, c.disabled, c.clocks = o.uncounted, o.disabled, o.clocks
	if !c.snap.NodesComplete {
		c.snap.Nodes = nodesOf(c.snap.Live.Queues)
	}
}

// management reads what only the management API has. It sends all requests concurrently, because a slow API takes
// seconds for each of them.
func (c *collector) management(ctx context.Context) {
	var uncounted string
	var wg sync.WaitGroup
	wg.Go(func() { uncounted = c.overview(ctx) })
	wg.Go(func() { c.nodes(ctx) })
	wg.Go(func() { c.flags(ctx) })
	wg.Go(func() { c.alarms(ctx) })
	wg.Go(func() { c.connections(ctx) })
	wg.Wait()
	if !c.snap.NodesComplete { // without the monitoring tag, the list contains only the user's own connections
		c.snap.Clients = nil
	}
	c.uncounted = cmp.Or(c.uncounted, uncounted)
	slices.SortFunc(c.snap.Unchecked, func(a, b doctor.Unchecked) int {
		return cmp.Or(cmp.Compare(a.Area, b.Area), cmp.Compare(a.Why, b.Why))
	})
}

// overview reads the exchange types, and the clock of the node that answers. It returns why the broker does not count
// messages, or an empty string if the broker counts them.
func (c *collector) overview(ctx context.Context) (uncounted string) {
	var overview struct {
		Types []struct {
			Name string `json:"name"`
		} `json:"exchange_types"`
		Node     string `json:"node"` // absent for a user without the monitoring tag
		Rates    string `json:"rates_mode"`
		Disabled bool   `json:"disable_stats"`
	}
	x, ok := c.get(ctx, "/api/overview", &overview)
	if !ok {
		return ""
	}
	c.date(overview.Node, x)
	c.snap.ExchangeTypes = []string{}
	for _, t := range overview.Types {
		c.snap.ExchangeTypes = append(c.snap.ExchangeTypes, t.Name)
	}
	c.disabled = overview.Disabled
	if overview.Rates == "none" {
		return "the broker counts no messages (management.rates_mode)"
	}
	return ""
}

func (c *collector) flags(ctx context.Context) {
	var flags []struct {
		Name  string `json:"name"`
		State string `json:"state"`
	}
	if _, ok := c.get(ctx, "/api/feature-flags", &flags); !ok {
		return
	}
	c.snap.Flags = make(map[string]bool, len(flags))
	for _, f := range flags {
		c.snap.Flags[f.Name] = f.State == "enabled"
	}
}

// nodes lists the nodes, if the user has the monitoring tag.
func (c *collector) nodes(ctx context.Context) {
	var list []struct {
		Name       string   `json:"name"`
		Running    bool     `json:"running"`
		Partitions []string `json:"partitions"`
		Memory     bool     `json:"mem_alarm"`
		Disk       bool     `json:"disk_free_alarm"`
		Files      []string `json:"config_files"` // absent for a node that is down
		Uptime     int64    `json:"uptime"`       // milliseconds
	}
	if _, ok := c.get(ctx, "/api/nodes?columns=name,running,partitions,mem_alarm,disk_free_alarm,config_files,uptime", &list); ok {
		c.snap.NodesComplete = true
		for _, n := range list {
			c.snap.Nodes = append(c.snap.Nodes, doctor.Node{
				Name: n.Name, Running: n.Running, Partitions: n.Partitions, ConfigFiles: n.Files, FilesKnown: n.Files != nil,
				Uptime: time.Duration(n.Uptime) * time.Millisecond,
			})
		}
	}
}

// nodesOf lists the nodes that have queues.
func nodesOf(queues map[string]plan.Queue) (nodes []doctor.Node) {
	var names []string
	for _, q := range queues {
		names = append(names, q.Members...)
		if q.Node != "" {
			names = append(names, q.Node)
		}
	}
	slices.Sort(names)
	for _, n := range slices.Compact(names) {
		nodes = append(nodes, doctor.Node{Name: n})
	}
	return nodes
}

// alarms reads the alarms from a health check that every user may read. The health check answers 503 with a list of the
// alarms if there are any.
func (c *collector) alarms(ctx context.Context) {
	_, err := c.src.Management.Call(ctx, http.MethodGet, "/api/health/checks/alarms", nil, nil)
	status, ok := errors.AsType[*live.StatusError](err)
	switch {
	case err == nil:
		c.snap.Alarms = []doctor.Alarm{}
	case ok && status.Code == http.StatusServiceUnavailable:
		var body struct {
			Alarms []struct {
				Node     string `json:"node"`
				Resource string `json:"resource"`
			} `json:"alarms"`
		}
		if err := json.Unmarshal(status.Body, &body); err != nil || len(body.Alarms) == 0 { // for example, a response from a proxy
			c.uncheckedf(doctor.AreaAlarms, "alarms could not be read: %s, without a list of alarms", oneLine(status))
			return
		}
		for _, a := range body.Alarms {
			c.snap.Alarms = append(c.snap.Alarms, doctor.Alarm{Node: a.Node, Resource: a.Resource})
		}
	default:
		c.uncheckedf(doctor.AreaAlarms, "alarms could not be read: %s", oneLine(err))
	}
}

// connections finds blocked connections, those of rabbitdelay clients, and the doctor's own connections, whose
// connected_at reveals the clock of their node.
func (c *collector) connections(ctx context.Context) {
	var list []struct {
		Name        string `json:"name"`
		Given       string `json:"user_provided_name"`
		State       string `json:"state"`
		ConnectedAt int64  `json:"connected_at"`
		Vhost       string `json:"vhost"`
		Node        string `json:"node"`
		Protocol    string `json:"protocol"`
		Client      struct {
			Product string `json:"product"`
		} `json:"client_properties"`
	}
	if _, ok := c.get(ctx, "/api/connections?columns=name,user_provided_name,state,connected_at,vhost,node,protocol,client_properties", &list); !ok {
		return
	}
	c.snap.Clients = []doctor.Connection{}
	for _, k := range list {
		if k.Vhost == c.src.Management.Vhost() && k.Protocol != "" && !strings.HasPrefix(k.Protocol, "AMQP 0") {
			c.uncounted = "the broker does not count what clients of other protocols publish (" + k.Protocol + ")"
		}
		blocked := k.State == "blocked" || k.State == "blocking"
		own := c.src.ConnectionName != "" && strings.HasPrefix(k.Given, c.src.ConnectionName)
		if k.Client.Product == "rabbitdelay" && !own && k.Vhost == c.src.Management.Vhost() {
			c.snap.Clients = append(c.snap.Clients, doctor.Connection{Name: k.Given, Blocked: blocked})
		}
		switch {
		case own:
			if k.ConnectedAt > 0 {
				c.heard(k.Node, methodConnected, newReading(c.dialed, c.connected, time.UnixMilli(k.ConnectedAt), connectedResolution))
			}
		case blocked:
			name := k.Name
			if k.Given != "" {
				name = k.Given + " (" + k.Name + ")"
			}
			c.snap.BlockedConnections = append(c.snap.BlockedConnections, name)
		}
	}
}

func (c *collector) peek(ctx context.Context) error {
	parked := topology.ParkedQueue(c.cfg.Prefix)
	if c.src.Peek <= 0 || c.snap.Live.Queues[parked].Messages == 0 {
		return nil
	}
	v := plan.ParseVersion(c.snap.Version)
	switch {
	case !c.managed:
		c.notef("parked messages were not read, because this needs the management API")
		return nil
	case !v.Known() || v.AtLeast(4, 0, 0) && v.Before(4, 3, 0):
		c.notef("parked messages were not read: RabbitMQ %s counts each read as a delivery, and drops a message after the twentieth", c.snap.Version)
		return nil
	}
	var got []struct {
		RoutingKey string          `json:"routing_key"`
		Properties json.RawMessage `json:"properties"`
	}
	one, cancel := c.ask(ctx)
	defer cancel()
	_, err := c.src.Management.Call(one, http.MethodPost, c.src.Management.InVhost("queues", parked)+"/get", map[string]any{
		"count": min(c.src.Peek, 100), "ackmode": "ack_requeue_true", "encoding": "auto", "truncate": 1,
	}, &got)
	if err != nil {
		if ctx.Err() == nil {
			c.notef("parked messages could not be read: %s", oneLine(err))
		}
		return nil
	}
	for _, m := range got {
		c.snap.ParkedSamples = append(c.snap.ParkedSamples, doctor.Parked{RoutingKey: m.RoutingKey, Destination: destinationIn(m.Properties)})
	}
	return nil
}

// destinationIn reads the destination from a message's properties. It returns "" if there is none, and then the routing
// key shows the destination. The management API writes empty properties and headers as an empty list.
func destinationIn(properties json.RawMessage) string {
	var p struct {
		Headers json.RawMessage `json:"headers"`
	}
	var headers map[string]any
	_ = json.Unmarshal(properties, &p)
	_ = json.Unmarshal(p.Headers, &headers)
	d, _ := headers[naming.HeaderDestination].(string)
	return d
}

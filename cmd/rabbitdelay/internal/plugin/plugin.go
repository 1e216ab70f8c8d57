package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/internal/plan"
	"github.com/rabbitdelay/rabbitdelay/internal/program"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
	"github.com/rabbitdelay/rabbitdelay/internal/term"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// pluginTimeout is the timeout of plugin status. On RabbitMQ 3.10, each count reads the whole table.
const pluginTimeout = 2 * time.Minute

// answering is how long the management API may take to answer the first request.
const answering = 10 * time.Second

type pluginStatus struct {
	Vhost     string    `json:"vhost"`
	Exchanges []delayed `json:"exchanges"`
	// Publishers are connections that publish to one of the exchanges, or publish messages that are not routed. It is nil
	// if they could not be read.
	Publishers []live.Publisher `json:"publishers"`
	InTheWay   []string         `json:"in_the_way"`
	Unchecked  []string         `json:"unchecked"`
}

func statusCommand(a *app.App) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show what still depends on the plugin",
		Long: `Show the x-delayed-message exchanges of the virtual host, their waiting
messages, bindings and publishers, and what prevents an upgrade to RabbitMQ 4.3.
It changes nothing.`,
		Example: `  rabbitdelay plugin status
  rabbitdelay plugin status --json | jq '.exchanges[] | {name, waiting}'`,
		RunE: func(c *cobra.Command, _ []string) error { return status(c.Context(), a) },
	}
}

func status(ctx context.Context, a *app.App) error {
	c, err := a.Load(nil)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, pluginTimeout)
	defer cancel()
	conn, err := c.Dial(ctx)
	if err != nil {
		return err
	}
	defer app.Close(conn)
	public, err := c.Management()
	if err != nil {
		return err
	}
	m := live.Internal(public)
	one, stop := context.WithTimeout(ctx, answering)
	err = m.SameCluster(one, conn)
	if err != nil && one.Err() != nil && ctx.Err() == nil {
		err = fmt.Errorf("no answer within %v", answering)
	}
	stop()
	if err != nil {
		if _, foreign := errors.AsType[*live.ClusterError](err); foreign {
			return err
		}
		return fmt.Errorf("the management API at %s, which is needed to count the plugin's messages, %s (broker.management_url): %w", m.Endpoint(), live.Failure(err), err)
	}
	done := a.Waiting("inspecting the broker")
	s, err := lookAtPlugin(ctx, m, c.Delay.Prefix)
	done()
	if err != nil {
		return err
	}
	if err := printStatus(a, s); err != nil {
		return err
	}
	if len(s.Unchecked) > 0 {
		return program.Exit(app.ExitUnseen)
	}
	return nil
}

func lookAtPlugin(ctx context.Context, m *live.Management, prefix string) (pluginStatus, error) {
	var found plan.State
	var publishers []live.Publisher
	var nodes []string
	var err, unread error
	var wg sync.WaitGroup // concurrently, because an API under load takes seconds for each request
	wg.Go(func() { found, err = m.Inspect(ctx, topology.Topology{}) })
	wg.Go(func() { publishers, unread = m.UnroutedPublishers(ctx) })
	wg.Go(func() { nodes = otherNodes(ctx, m) })
	wg.Wait()
	if err != nil {
		return pluginStatus{}, err
	}
	list := survey(found, prefix)
	s := pluginStatus{Vhost: m.Vhost(), Exchanges: list, Publishers: publishers, InTheWay: inTheWay(list), Unchecked: []string{}}
	for _, d := range list {
		if d.Waiting == nil {
			s.Unchecked = append(s.Unchecked, fmt.Sprintf("the number of messages in exchange %s: the broker does not report it", d.Name))
		}
	}
	if unread != nil {
		s.Unchecked = append(s.Unchecked, "the publishers: "+unread.Error())
	}
	if len(list) > 0 {
		s.Unchecked = append(s.Unchecked, nodes...)
	}
	return s, nil
}

// otherNodes describes what is unknown because other nodes may have their own tables.
func otherNodes(ctx context.Context, m *live.Management) []string {
	var nodes []struct {
		Name string `json:"name"`
	}
	_, err := m.Call(ctx, http.MethodGet, "/api/nodes?columns=name", nil, &nodes)
	switch {
	case live.IsDenied(err):
		return []string{"whether other nodes have their own tables: the user needs the monitoring tag"}
	case err != nil:
		return []string{"whether other nodes have their own tables: " + err.Error()}
	case len(nodes) > 1:
		return []string{fmt.Sprintf("the tables of other nodes: the cluster has %d nodes, and only the node behind %s was asked; ask the management API of each node", len(nodes), m.Endpoint())}
	}
	return nil
}

func printStatus(a *app.App, s pluginStatus) error {
	if a.JSON {
		return a.PrintJSON(s)
	}
	if len(s.Exchanges) == 0 {
		a.Printf("virtual host %s has no x-delayed-message exchange\n", shown.Line(s.Vhost))
	}
	for _, e := range s.Exchanges {
		if err := printDelayed(a.Table(), e); err != nil {
			return err
		}
	}
	if len(s.Exchanges) > 0 && len(s.Publishers) > 0 {
		a.Printf("connections that publish to these exchanges, or publish unroutable messages\n")
		for _, p := range s.Publishers {
			a.Printf("- user %s at %s\n", shown.Line(p.User), shown.Line(p.Connection))
		}
		a.Printf("\n")
	}
	if len(s.InTheWay) > 0 {
		a.Printf("what prevents RabbitMQ 4.3\n")
		for _, w := range s.InTheWay {
			a.Printf("- %s\n", shown.Line(w))
		}
	}
	for _, u := range s.Unchecked {
		a.Printf("not checked: %s\n", shown.Line(u))
	}
	return nil
}

func printDelayed(table *term.Table, e delayed) error {
	table.Linef("%s", shown.Line(e.Name))
	table.Row("  routes as", shown.Line(cmp.Or(e.Type, "(no x-delayed-type)")))
	waiting := "unknown"
	if e.Waiting != nil {
		waiting = shown.Count(*e.Waiting, "message", "messages")
	}
	table.Row("  waiting", waiting)
	for _, b := range e.Bound {
		to := "queue " + shown.Line(b.Queue)
		if b.Exchange != "" {
			to = "exchange " + shown.Line(b.Exchange)
		}
		table.Row("  bound", to+" with "+shown.Line(b.RoutingKey))
	}
	table.Field("  from exchanges", strings.Join(e.From, ", "))
	table.Row("")
	return table.Flush()
}

// Command returns the plugin command, which shows what depends on the plugin, and moves its messages into delay queues.
func Command(a *app.App) *cobra.Command {
	c := &cobra.Command{
		Use:   "plugin",
		Short: "Leave the x-delayed-message plugin without losing messages",
		Long: `Move away from the x-delayed-message plugin, which is archived and does not run
on RabbitMQ 4.3. "status" shows what depends on it, and "drain" moves its
waiting messages into delay queues.`,
		Example: `  rabbitdelay plugin status
  rabbitdelay plugin drain --dry-run`,
	}
	c.AddCommand(statusCommand(a), drainCommand(a))
	return c
}

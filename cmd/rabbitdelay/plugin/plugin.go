package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/amqpx/shown"
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/program"
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/term"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
	"github.com/rabbitdelay/rabbitdelay/plugin"
	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/live"
)

// pluginTimeout is the timeout of plugin status. On RabbitMQ 3.10, each count reads the whole table.
const pluginTimeout = 2 * time.Minute

type pluginStatus struct {
	Vhost     string           `json:"vhost"`
	Exchanges []plugin.Delayed `json:"exchanges"`
	// Publishers are connections that publish to one of the exchanges, or publish messages that are not routed.
	Publishers []live.Publisher `json:"publishers"`
	InTheWay   []string         `json:"in_the_way"`
	Unseen     []string         `json:"unseen"`
}

func statusCommand(a *app.App) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show the x-delayed-message exchanges and what is in the way of RabbitMQ 4.3",
		Long: `status shows every x-delayed-message exchange of the virtual host: how many messages
wait in it, what is bound to it, which connections may publish to it, and what must
go before the broker can become RabbitMQ 4.3. It changes nothing.

It needs the management API. Waiting messages are those of the node that answers:
the plugin keeps a table on each. The broker does not tell into which exchange a
channel publishes, but that what it published was not routed at once, as all that
the plugin holds: the connections shown are those with an open channel of that kind.
A producer that connects once a day may not be among them. Nor can it be seen which
producers declare the exchange themselves: those fail on RabbitMQ 4.3.

Do not call it often: the broker counts by reading the whole table. On RabbitMQ 3.10
that takes seconds and hundreds of megabytes with 100,000 messages.

Exit code: 0 shown; 1 error; 2 shown, but not everything could be seen.`,
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
	m, err := c.Management()
	if err != nil {
		return err
	}
	if err := m.SameCluster(ctx, conn); err != nil {
		if _, foreign := errors.AsType[*live.ClusterError](err); foreign {
			return err
		}
		return fmt.Errorf("the management API at %s, which alone shows what waits in the plugin, %s (broker.management_url): %w", m.Endpoint(), live.Failure(err), err)
	}
	done := a.Waiting("looking at the broker")
	s, err := lookAtPlugin(ctx, m, c.Delay.Prefix)
	done()
	if err != nil {
		return err
	}
	if err := printStatus(a, s); err != nil {
		return err
	}
	if len(s.Unseen) > 0 {
		return program.Exit(app.ExitUnseen)
	}
	return nil
}

func lookAtPlugin(ctx context.Context, m *live.Management, prefix string) (pluginStatus, error) {
	found, err := m.Inspect(ctx, topology.Topology{})
	if err != nil {
		return pluginStatus{}, err
	}
	list := plugin.Survey(found, prefix)
	s := pluginStatus{Vhost: m.Vhost(), Exchanges: list, InTheWay: plugin.InTheWay(list), Unseen: []string{}}
	for _, d := range list {
		if d.Waiting == nil {
			s.Unseen = append(s.Unseen, fmt.Sprintf("what waits in exchange %s: the broker does not tell", d.Name))
		}
	}
	if s.Publishers, err = m.UnroutedPublishers(ctx); err != nil {
		s.Publishers = []live.Publisher{}
		s.Unseen = append(s.Unseen, "who publishes: "+err.Error())
	}
	if len(list) > 0 {
		s.Unseen = append(s.Unseen, otherNodes(ctx, m)...)
	}
	return s, nil
}

// otherNodes describes what is unknown because other nodes have tables of their own.
func otherNodes(ctx context.Context, m *live.Management) []string {
	var nodes []struct {
		Name string `json:"name"`
	}
	_, err := m.Call(ctx, http.MethodGet, "/api/nodes?columns=name", nil, &nodes)
	switch {
	case live.IsDenied(err):
		return []string{"whether there are further nodes with tables of their own: the user needs the tag monitoring"}
	case err != nil:
		return []string{"whether there are further nodes with tables of their own: " + err.Error()}
	case len(nodes) > 1:
		return []string{fmt.Sprintf("the tables of other nodes: the cluster has %d, and only the one behind %s was asked; ask the management API of each", len(nodes), m.Endpoint())}
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
		a.Printf("connections that publish there, or what nothing is bound for\n")
		for _, p := range s.Publishers {
			a.Printf("- user %s at %s\n", shown.Line(p.User), shown.Line(p.Connection))
		}
		a.Printf("\n")
	}
	if len(s.InTheWay) > 0 {
		a.Printf("in the way of RabbitMQ 4.3\n")
		for _, w := range s.InTheWay {
			a.Printf("- %s\n", shown.Line(w))
		}
	}
	for _, u := range s.Unseen {
		a.Printf("not seen: %s\n", shown.Line(u))
	}
	return nil
}

func printDelayed(table *term.Table, e plugin.Delayed) error {
	table.Linef("%s", shown.Line(e.Name))
	table.Row("  routes as", shown.Line(cmp.Or(e.Type, "(no x-delayed-type)")))
	waiting := "not told"
	if e.Waiting != nil {
		waiting = shown.Count(*e.Waiting, "message", "messages")
	}
	table.Row("  waiting", waiting)
	for _, b := range e.Bound {
		to := "queue " + shown.Line(b.Queue)
		if b.Exchange != "" {
			to = "exchange " + shown.Line(b.Exchange)
		}
		table.Row("  bound", to+" by "+shown.Line(b.RoutingKey))
	}
	table.Field("  from exchanges", strings.Join(e.From, ", "))
	table.Row("")
	return table.Flush()
}

// Command returns the command plugin.
func Command(a *app.App) *cobra.Command {
	c := &cobra.Command{
		Use:   "plugin",
		Short: "Leave the x-delayed-message plugin without losing what waits in it",
		Long: `plugin is for brokers with the x-delayed-message plugin, which is archived and does
not run on RabbitMQ 4.3. status shows what still depends on it; drain moves what waits
in it into delay queues.`,
		Example: `  rabbitdelay plugin status --url amqp://user:password@broker/vhost`,
	}
	c.AddCommand(statusCommand(a), drainCommand(a))
	return c
}

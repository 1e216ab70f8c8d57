package live

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/argument"
	"github.com/rabbitdelay/rabbitdelay/internal/plan"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// DefaultManagementTimeout bounds one inspection or call when ManagementConfig.Timeout is 0.
const DefaultManagementTimeout = 30 * time.Second

// ManagementConfig contains the management API's address and the login.
type ManagementConfig struct {
	// URL is the API's address without a path, e.g. "http://127.0.0.1:15672". It may contain the user name and
	// password.
	URL string
	// URLs are the addresses of further nodes of the same cluster. The first request is sent to a random node, and
	// later ones to the same node for as long as it answers.
	URLs []string
	// Username and Password override those in the URL. If neither is set, both default to "guest". The user needs the
	// management tag, and the policymaker tag to read policies.
	Username, Password string
	Vhost              string            // the virtual host; empty means "/"
	Transport          http.RoundTripper // carries custom TLS settings; nil means the default
	Timeout            time.Duration     // bounds one inspection or call; 0 means DefaultManagementTimeout
}

// Management is a client of RabbitMQ's management API. As an Inspector it reads a whole virtual host: objects with
// all their arguments, bindings, message counts and policies. It is safe for concurrent use.
type Management struct {
	endpoints []endpoint
	at        atomic.Int32 // index of the endpoint that answered last
	cfg       ManagementConfig
	public    any // the *topology/live.Management that wraps it; nil for none
}

type endpoint struct{ url, username, password string }

var _ Inspector = (*Management)(nil)

// NewManagement checks the configuration, and returns an error if an address is not a valid URL. It does not connect.
func NewManagement(cfg ManagementConfig) (*Management, error) {
	var endpoints []endpoint
	for _, raw := range append([]string{cfg.URL}, cfg.URLs...) {
		e, err := newEndpoint(raw, cfg)
		if err != nil {
			return nil, err
		}
		endpoints = append(endpoints, e)
	}
	cfg.Vhost = cmp.Or(cfg.Vhost, "/")
	if cfg.Timeout <= 0 {
		cfg.Timeout = DefaultManagementTimeout
	}
	m := &Management{endpoints: endpoints, cfg: cfg}
	m.at.Store(rand.Int32N(int32(len(endpoints)))) // few addresses are configured, so their number fits into 32 bits
	return m, nil
}

func newEndpoint(raw string, cfg ManagementConfig) (endpoint, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || strings.Count(u.Host, ":") > 1 && u.Host[0] != '[' {
		// The URL may contain a password, so the message omits it.
		return endpoint{}, errors.New("management API: expected a URL such as http://127.0.0.1:15672")
	}
	e := endpoint{username: cfg.Username, password: cfg.Password}
	if e.username == "" && u.User != nil {
		e.username = u.User.Username()
		e.password, _ = u.User.Password()
	}
	if e.username == "" {
		e.username, e.password = "guest", "guest"
	}
	u.User = nil
	e.url = strings.TrimRight(u.String(), "/")
	return e, nil
}

// Inspect reads the whole virtual host. For a user without the policymaker tag the result has PoliciesKnown set to
// false.
func (m *Management) Inspect(ctx context.Context, _ topology.Topology) (plan.State, error) {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Timeout)
	defer cancel()
	found := plan.State{Source: plan.ManagementAPI, BindingsKnown: true}
	var exchanges, queues, bindings, policies error
	var wg sync.WaitGroup // concurrently, because an API under load takes seconds for each request
	wg.Go(func() { found.Exchanges, exchanges = m.exchanges(ctx) })
	wg.Go(func() { found.Queues, queues = m.Queues(ctx) })
	wg.Go(func() { found.Bindings, found.Unbind, bindings = m.bindings(ctx) })
	wg.Go(func() { found.Policies, policies = m.policies(ctx) })
	wg.Go(func() { found.QueueLimit, found.ConnectionLimit = m.limits(ctx) })
	found.Vhost = m.cfg.Vhost
	wg.Wait()
	switch {
	case exchanges != nil:
		return plan.State{}, m.failed("exchanges", exchanges)
	case queues != nil:
		return plan.State{}, queues
	case bindings != nil:
		return plan.State{}, m.failed("bindings", bindings)
	case policies != nil && !IsDenied(policies):
		return plan.State{}, m.failed("policies", policies)
	}
	found.PoliciesKnown = policies == nil
	return found.WithCurrentPolicies(), nil
}

// limits returns the virtual host's limits, each 0 if there is none or it cannot be read.
func (m *Management) limits(ctx context.Context) (queues, connections int64) {
	var list []struct {
		Vhost string `json:"vhost"`
		Value struct {
			MaxQueues      int64 `json:"max-queues"`
			MaxConnections int64 `json:"max-connections"`
		} `json:"value"`
	}
	if _, err := m.Call(ctx, http.MethodGet, m.InVhost("vhost-limits"), nil, &list); err != nil {
		return 0, 0
	}
	for _, l := range list {
		if l.Vhost == m.cfg.Vhost {
			return max(0, l.Value.MaxQueues), max(0, l.Value.MaxConnections) // negative means none
		}
	}
	return 0, 0
}

func (m *Management) failed(what string, err error) error {
	return fmt.Errorf("management API %s, virtual host %q: read %s: %w", m.Endpoint(), m.cfg.Vhost, what, err)
}

// get reads a list of the virtual host's objects.
func (m *Management) get(ctx context.Context, kind, columns string, out any) error {
	_, err := m.Call(ctx, http.MethodGet, m.InVhost(kind)+"?columns="+columns, nil, out)
	return err
}

// jsonObject is a JSON object. Some versions of the API write an empty object as an empty list or string.
type jsonObject map[string]any

// UnmarshalJSON decodes an object. It decodes an empty list or string as an empty object.
func (o *jsonObject) UnmarshalJSON(data []byte) error {
	switch string(data) {
	case "null":
		return nil
	case "[]", `""`:
		*o = jsonObject{}
		return nil
	}
	read := json.NewDecoder(bytes.NewReader(data))
	read.UseNumber()
	if err := read.Decode((*map[string]any)(o)); err != nil {
		return err
	}
	for name, v := range *o {
		(*o)[name] = exact(v)
	}
	return nil
}

// exact returns a JSON value with its whole numbers as int64, because arguments can contain integers above 2^53, such
// as ids, that a float64 cannot represent.
func exact(v any) any {
	switch x := v.(type) {
	case json.Number:
		if n, err := x.Int64(); err == nil {
			return n
		}
		f, _ := x.Float64() // infinite if it is out of range
		return f
	case map[string]any:
		for name, e := range x {
			x[name] = exact(e)
		}
	case []any:
		for i, e := range x {
			x[i] = exact(e)
		}
	}
	return v
}

func (m *Management) exchanges(ctx context.Context) (map[string]plan.Exchange, error) {
	var list []struct {
		Name       string     `json:"name"`
		Type       string     `json:"type"`
		Durable    bool       `json:"durable"`
		AutoDelete bool       `json:"auto_delete"`
		Internal   bool       `json:"internal"`
		Arguments  jsonObject `json:"arguments"`
		Delayed    *int64     `json:"messages_delayed"` // only exchanges of the plugin have it
	}
	if err := m.get(ctx, "exchanges", "name,type,durable,auto_delete,internal,arguments,messages_delayed", &list); err != nil {
		return nil, err
	}
	out := make(map[string]plan.Exchange, len(list))
	for _, e := range list {
		x := plan.Exchange{
			ArgumentsKnown: true, Kind: e.Type, Durable: e.Durable, AutoDelete: e.AutoDelete, Internal: e.Internal, Arguments: e.Arguments,
		}
		if e.Delayed != nil {
			x.Held, x.HeldKnown = *e.Delayed, true
		}
		out[e.Name] = x
	}
	return out, nil
}

const queueColumns = "name,type,durable,auto_delete,exclusive,arguments,consumers,policy,operator_policy,effective_policy_definition," +
	"messages,messages_ready,messages_unacknowledged,messages_delayed,message_bytes_ready,members,online,node,leader,state,message_stats.publish"

// queueAnswer is a queue in the API's format.
type queueAnswer struct {
	Name            string     `json:"name"`
	Type            string     `json:"type"`
	Durable         bool       `json:"durable"`
	AutoDelete      bool       `json:"auto_delete"`
	Exclusive       bool       `json:"exclusive"`
	Arguments       jsonObject `json:"arguments"`
	Consumers       int64      `json:"consumers"`
	Policy          string     `json:"policy"`
	OperatorPolicy  string     `json:"operator_policy"`
	EffectivePolicy jsonObject `json:"effective_policy_definition"`

	Messages   *int64 `json:"messages"`       // absent if the queue was just declared, or does not answer
	Ready      *int64 `json:"messages_ready"` // absent in the same cases
	Unacked    int64  `json:"messages_unacknowledged"`
	Delayed    int64  `json:"messages_delayed"` // messages that wait for their own due time
	ReadyBytes int64  `json:"message_bytes_ready"`

	Members []string `json:"members"`
	Online  []string `json:"online"`
	Node    string   `json:"node"`
	Leader  string   `json:"leader"`
	State   string   `json:"state"`

	Stats jsonObject `json:"message_stats"` // absent until the broker has statistics
}

// unavailable returns the reason why the queue's counts are unknown, or "" if the answer gives no reason. A quorum
// queue without a majority of its replicas has no leader, but the state that the broker reports for it depends on the
// broker's version. RabbitMQ 3.10 also continues to report the last counts of such a queue.
func (q queueAnswer) unavailable() string {
	online := 0
	for _, m := range q.Members {
		if slices.Contains(q.Online, m) {
			online++
		}
	}
	switch {
	case slices.Contains([]string{"down", "minority", "stopped", "crashed"}, q.State):
		return "the queue's state is " + q.State
	case len(q.Members) > 0 && online <= len(q.Members)/2:
		return fmt.Sprintf("%d of its %d replicas are online, which is not a majority", online, len(q.Members))
	}
	return ""
}

func (q queueAnswer) live() plan.Queue {
	kind := strings.TrimSuffix(strings.TrimPrefix(q.Type, "rabbit_"), "_queue")
	leaving := int64(0)
	messages := int64(0)
	if q.Messages != nil {
		messages = *q.Messages
	}
	if q.Ready != nil {
		leaving = max(0, messages-*q.Ready-q.Unacked-q.Delayed)
	}
	published, _ := argument.Integer(q.Stats["publish"])
	unavailable := q.unavailable()
	return plan.Queue{
		Unavailable: unavailable, Uncounted: q.Messages == nil && unavailable == "",
		ArgumentsKnown: true, Type: cmp.Or(topology.QueueType(kind), topology.Classic),
		Durable: q.Durable, AutoDelete: q.AutoDelete, Exclusive: q.Exclusive, Arguments: q.Arguments,
		Messages: messages, Unacked: q.Unacked, Leaving: leaving, ReadyBytes: q.ReadyBytes,
		Consumers: q.Consumers, Published: published,
		Members: q.Members, Online: q.Online, Node: cmp.Or(q.Node, q.Leader), State: q.State,
		EffectivePolicy: q.EffectivePolicy, Policy: q.Policy, OperatorPolicy: q.OperatorPolicy,
	}
}

// Queues returns all queues of the virtual host by name.
func (m *Management) Queues(ctx context.Context) (map[string]plan.Queue, error) {
	var list []queueAnswer
	if err := m.get(ctx, "queues", queueColumns, &list); err != nil {
		return nil, m.failed("queues", err)
	}
	out := make(map[string]plan.Queue, len(list))
	for _, q := range list {
		out[q.Name] = q.live()
	}
	return out, nil
}

// Queue returns one queue. It returns nil if the queue does not exist.
func (m *Management) Queue(ctx context.Context, name string) (*plan.Queue, error) {
	var q queueAnswer
	_, err := m.Call(ctx, http.MethodGet, m.InVhost("queues", name)+"?columns="+queueColumns, nil, &q)
	if status, ok := errors.AsType[*StatusError](err); ok && status.Code == http.StatusNotFound {
		return nil, nil
	}
	if err != nil {
		return nil, m.failed("queue "+name, err)
	}
	found := q.live()
	return &found, nil
}

// bindings returns all bindings except those of the default exchange, to which every queue is bound. The map unbind
// contains the URL for deleting each binding.
func (m *Management) bindings(ctx context.Context) (out []topology.Binding, unbind map[string]string, err error) {
	var list []struct {
		Source      string     `json:"source"`
		Destination string     `json:"destination"`
		Type        string     `json:"destination_type"`
		RoutingKey  string     `json:"routing_key"`
		Arguments   jsonObject `json:"arguments"`
		Key         string     `json:"properties_key"`
	}
	if err := m.get(ctx, "bindings", "source,destination,destination_type,routing_key,arguments,properties_key", &list); err != nil {
		return nil, nil, err
	}
	out, unbind = make([]topology.Binding, 0, len(list)), make(map[string]string, len(list))
	for _, b := range list {
		t, to := topology.Binding{Exchange: b.Source, RoutingKey: b.RoutingKey, Arguments: b.Arguments}, "q"
		switch {
		case b.Source == "":
			continue
		case b.Type == "exchange":
			t.ToExchange, to = b.Destination, "e"
		default:
			t.Queue = b.Destination
		}
		out = append(out, t)
		unbind[t.String()] = m.Endpoint() + m.InVhost("bindings", "e", b.Source, to, b.Destination, b.Key)
	}
	return out, unbind, nil
}

func (m *Management) policies(ctx context.Context) ([]plan.Policy, error) {
	kinds := []string{"policies", "operator-policies"}
	found, errs := make([][]plan.Policy, len(kinds)), make([]error, len(kinds))
	var wg sync.WaitGroup
	for i, kind := range kinds {
		wg.Go(func() { found[i], errs[i] = m.policiesOf(ctx, kind) })
	}
	wg.Wait()
	return slices.Concat(found...), cmp.Or(errs...)
}

// policiesOf reads the policies of one kind, "policies" or "operator-policies".
func (m *Management) policiesOf(ctx context.Context, kind string) (out []plan.Policy, err error) {
	var list []struct {
		Name       string     `json:"name"`
		Pattern    string     `json:"pattern"`
		ApplyTo    string     `json:"apply-to"`
		Priority   int        `json:"priority"`
		Definition jsonObject `json:"definition"`
	}
	if err := m.get(ctx, kind, "name,pattern,apply-to,priority,definition", &list); err != nil {
		return nil, err
	}
	for _, p := range list {
		out = append(out, plan.Policy{
			Name: p.Name, Operator: kind == "operator-policies", Pattern: p.Pattern, ApplyTo: p.ApplyTo, Priority: p.Priority, Definition: p.Definition,
		})
	}
	return out, nil
}

// Publisher identifies a connection that publishes.
type Publisher struct {
	User       string `json:"user"`
	Connection string `json:"connection"` // the broker's name for the connection
}

// UnroutedPublishers returns the connections with an open channel that has published messages that were not routed
// immediately to any queue. They include the connections that publish to an x-delayed-message exchange, because the
// plugin reports delayed messages to the broker as not routed. The broker reports which exchange a channel publishes to
// only if it collects detailed rates. The figures are up to 10 s old. Connections of other users are omitted if the
// user does not have the monitoring tag.
func (m *Management) UnroutedPublishers(ctx context.Context) ([]Publisher, error) {
	var channels []struct {
		User       string     `json:"user"`
		Connection jsonObject `json:"connection_details"`
		Stats      jsonObject `json:"message_stats"` // a list if there are no statistics
	}
	path := m.InVhost("vhosts") + "/channels?columns=user,connection_details.name,message_stats.drop_unroutable,message_stats.return_unroutable"
	if _, err := m.Call(ctx, http.MethodGet, path, nil, &channels); err != nil {
		return nil, m.failed("channels", err)
	}
	list := []Publisher{}
	for _, c := range channels {
		name, _ := c.Connection["name"].(string)
		dropped, _ := argument.Integer(c.Stats["drop_unroutable"])
		returned, _ := argument.Integer(c.Stats["return_unroutable"])
		p := Publisher{c.User, name}
		if dropped+returned > 0 && !slices.Contains(list, p) {
			list = append(list, p)
		}
	}
	slices.SortFunc(list, func(a, b Publisher) int {
		return cmp.Or(cmp.Compare(a.User, b.User), cmp.Compare(a.Connection, b.Connection))
	})
	return list, nil
}

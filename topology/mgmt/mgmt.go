// Package mgmt reads a broker through RabbitMQ's management API: objects with
// all their arguments, bindings, message counts and policies. It is a package
// of its own so that package topology needs no HTTP client.
package mgmt

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	rabbithole "github.com/michaelklishin/rabbit-hole/v3"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

// DefaultTimeout bounds one inspection when Config.Timeout is 0.
const DefaultTimeout = 30 * time.Second

// Config says where the management API is.
type Config struct {
	// URL is the API's address without a path, e.g. "http://127.0.0.1:15672". It
	// may carry the user and password.
	URL string
	// Username and Password override those of the URL; "guest" if neither gives
	// one. The user needs the tag management, and policymaker for the policies.
	Username, Password string
	// Vhost is the virtual host; empty means "/".
	Vhost string
	// Transport is for TLS settings of one's own; nil means the default.
	Transport http.RoundTripper
	// Timeout bounds one inspection; 0 means DefaultTimeout.
	Timeout time.Duration
}

// Inspector is a topology.Inspector. It is safe for concurrent use.
type Inspector struct {
	endpoint  string
	cfg       Config
	transport http.RoundTripper
}

var _ topology.Inspector = (*Inspector)(nil)

// New checks the configuration; it does not connect.
func New(cfg Config) (*Inspector, error) {
	u, err := url.Parse(cfg.URL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		// The URL itself may hold a password and stays out of the message.
		return nil, errors.New("management API: expected a URL such as http://127.0.0.1:15672")
	}
	if cfg.Username == "" && u.User != nil {
		cfg.Username = u.User.Username()
		cfg.Password, _ = u.User.Password()
	}
	if cfg.Username == "" {
		cfg.Username, cfg.Password = "guest", "guest"
	}
	if cfg.Vhost == "" {
		cfg.Vhost = "/"
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = DefaultTimeout
	}
	transport := cfg.Transport
	if transport == nil {
		transport = http.DefaultTransport
	}
	u.User = nil
	return &Inspector{endpoint: strings.TrimRight(u.String(), "/"), cfg: cfg, transport: transport}, nil
}

// contextTransport gives requests a context; the API client has no way to pass one.
type contextTransport struct {
	ctx  context.Context
	base http.RoundTripper
}

// RoundTrip sends the request with the context.
func (t contextTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	return t.base.RoundTrip(r.WithContext(t.ctx))
}

// Inspect reads the whole virtual host. A user without the tag policymaker gets
// an answer with PoliciesKnown false.
func (i *Inspector) Inspect(ctx context.Context, _ topology.Topology) (topology.Live, error) {
	ctx, cancel := context.WithTimeout(ctx, i.cfg.Timeout)
	defer cancel()
	c, err := rabbithole.NewTLSClient(i.endpoint, i.cfg.Username, i.cfg.Password, contextTransport{ctx, i.transport})
	if err != nil {
		return topology.Live{}, i.failed("connect", err)
	}
	live := topology.Live{Source: "management API", BindingsKnown: true}
	if live.Exchanges, err = i.exchanges(ctx); err != nil {
		return topology.Live{}, i.failed("read exchanges", err)
	}
	if live.Queues, err = i.queues(ctx); err != nil {
		return topology.Live{}, i.failed("read queues", err)
	}
	if live.Bindings, err = i.bindings(c); err != nil {
		return topology.Live{}, i.failed("read bindings", err)
	}
	live.Policies, err = i.policies(c)
	if err != nil && !forbidden(err) {
		return topology.Live{}, i.failed("read policies", err)
	}
	live.PoliciesKnown = err == nil
	return live, nil
}

func (i *Inspector) failed(what string, err error) error {
	return fmt.Errorf("management API %s, virtual host %q: %s: %w", i.endpoint, i.cfg.Vhost, what, err)
}

// forbidden tells whether the user may not read this. The client reports one
// of the two statuses as plain text only.
func forbidden(err error) bool {
	if e, ok := errors.AsType[rabbithole.ErrorResponse](err); ok {
		return e.StatusCode == http.StatusForbidden || e.StatusCode == http.StatusUnauthorized
	}
	return strings.Contains(err.Error(), "401 Unauthorized")
}

// exchangeRecord has the fields of an exchange that are needed. The client's own
// type lacks the plugin's count.
type exchangeRecord struct {
	Name       string     `json:"name"`
	Type       string     `json:"type"`
	Durable    bool       `json:"durable"`
	AutoDelete bool       `json:"auto_delete"`
	Internal   bool       `json:"internal"`
	Arguments  definition `json:"arguments"`
	Delayed    *int64     `json:"messages_delayed"`
}

func (i *Inspector) exchanges(ctx context.Context) (map[string]topology.LiveExchange, error) {
	var list []exchangeRecord
	if _, err := i.Call(ctx, http.MethodGet, i.InVhost("exchanges")+"?columns=name,type,durable,auto_delete,internal,arguments,messages_delayed", nil, &list); err != nil {
		return nil, err
	}
	out := make(map[string]topology.LiveExchange, len(list))
	for _, e := range list {
		x := topology.LiveExchange{
			ArgumentsKnown: true,
			Kind:           e.Type,
			Durable:        e.Durable,
			AutoDelete:     e.AutoDelete,
			Internal:       e.Internal,
			Arguments:      amqp.Table(e.Arguments),
		}
		if e.Delayed != nil {
			x.Held, x.HeldKnown = *e.Delayed, true
		}
		out[e.Name] = x
	}
	return out, nil
}

func (i *Inspector) bindings(c *rabbithole.Client) ([]topology.Binding, error) {
	list, err := c.ListBindingsIn(i.cfg.Vhost)
	if err != nil {
		return nil, err
	}
	out := make([]topology.Binding, 0, len(list))
	for _, b := range list {
		if b.Source == "" {
			continue // every queue is bound to the default exchange
		}
		t := topology.Binding{Exchange: b.Source, RoutingKey: b.RoutingKey, Arguments: b.Arguments}
		if b.DestinationType == "exchange" {
			t.ToExchange = b.Destination
		} else {
			t.Queue = b.Destination
		}
		out = append(out, t)
	}
	return out, nil
}

func (i *Inspector) policies(c *rabbithole.Client) ([]topology.Policy, error) {
	list, err := c.ListPoliciesIn(i.cfg.Vhost)
	if err != nil {
		return nil, err
	}
	operator, err := c.ListOperatorPoliciesIn(i.cfg.Vhost)
	if err != nil {
		return nil, err
	}
	var out []topology.Policy
	for _, p := range list {
		out = append(out, topology.Policy{
			Name: p.Name, Pattern: p.Pattern, ApplyTo: p.ApplyTo, Priority: p.Priority, Definition: p.Definition,
		})
	}
	for _, p := range operator {
		out = append(out, topology.Policy{
			Name: p.Name, Operator: true, Pattern: p.Pattern, ApplyTo: p.ApplyTo, Priority: p.Priority, Definition: p.Definition,
		})
	}
	return out, nil
}

// queueRecord has the fields of a queue that are needed. The client's own type
// lacks the operator policy and the effective definition, which are what tells
// whether a delay queue keeps its TTL.
type queueRecord struct {
	Name            string         `json:"name"`
	Type            string         `json:"type"`
	Durable         bool           `json:"durable"`
	AutoDelete      bool           `json:"auto_delete"`
	Exclusive       bool           `json:"exclusive"`
	Arguments       map[string]any `json:"arguments"`
	Messages        int64          `json:"messages"`
	Consumers       int64          `json:"consumers"`
	Policy          string         `json:"policy"`
	OperatorPolicy  string         `json:"operator_policy"`
	EffectivePolicy definition     `json:"effective_policy_definition"`
}

const queueColumns = "name,type,durable,auto_delete,exclusive,arguments,messages,consumers,policy,operator_policy,effective_policy_definition"

// definition is an object; some versions write an empty one as a list.
type definition map[string]any

// UnmarshalJSON reads a definition, and takes an empty list for an empty one.
func (d *definition) UnmarshalJSON(data []byte) error {
	if s := string(data); s == "[]" || s == `""` || s == "null" {
		return nil
	}
	return json.Unmarshal(data, (*map[string]any)(d))
}

func (i *Inspector) queues(ctx context.Context) (map[string]topology.LiveQueue, error) {
	var list []queueRecord
	if _, err := i.Call(ctx, http.MethodGet, i.InVhost("queues")+"?columns="+queueColumns, nil, &list); err != nil {
		return nil, err
	}
	out := make(map[string]topology.LiveQueue, len(list))
	for _, q := range list {
		kind := q.Type
		if kind == "" {
			kind = string(topology.Classic)
		}
		out[q.Name] = topology.LiveQueue{
			ArgumentsKnown:  true,
			Type:            topology.QueueType(strings.TrimSuffix(strings.TrimPrefix(kind, "rabbit_"), "_queue")),
			Durable:         q.Durable,
			AutoDelete:      q.AutoDelete,
			Exclusive:       q.Exclusive,
			Arguments:       amqp.Table(q.Arguments),
			Messages:        q.Messages,
			Consumers:       q.Consumers,
			EffectivePolicy: q.EffectivePolicy,
			Policy:          q.Policy,
			OperatorPolicy:  q.OperatorPolicy,
		}
	}
	return out, nil
}

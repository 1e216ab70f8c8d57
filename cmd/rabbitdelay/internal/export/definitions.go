// Package export writes a topology in the formats of other tools, for teams that declare their brokers' objects with
// those tools.
package export

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"slices"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Definitions returns the topology as RabbitMQ definitions in JSON. Import them with `rabbitmqctl
// import_definitions`, the management API (POST /api/definitions), or the setting `definitions.local.path` of a node
// that has the virtual host. An import deletes nothing, and does not change existing objects.
func Definitions(t topology.Topology, vhost string) ([]byte, error) {
	return indented(definitionsOf(t, vhost))
}

// User is an administrator with all permissions for a virtual host.
type User struct{ Name, Password string }

// BootDefinitions returns Definitions for the first boot of a blank node, as its `definitions.local.path`. With such
// a file a node creates neither its default virtual host nor its default user, so the result contains both a virtual
// host and a user. The password is hashed.
func BootDefinitions(t topology.Topology, vhost string, u User) ([]byte, error) {
	salt := make([]byte, 4)
	if _, err := rand.Read(salt); err != nil {
		return nil, err
	}
	d := definitionsOf(t, vhost)
	d.Vhosts = []vhostDefinition{{vhost}}
	d.Users = []userDefinition{{u.Name, hashed256(salt, u.Password), "rabbit_password_hashing_sha256", []string{"administrator"}}}
	d.Permissions = []permissionDefinition{{u.Name, vhost, ".*", ".*", ".*"}}
	return indented(d)
}

// hashed256 returns a password in the form in which RabbitMQ stores it.
func hashed256(salt []byte, password string) string {
	sum := sha256.Sum256(append(slices.Clone(salt), password...))
	return base64.StdEncoding.EncodeToString(append(slices.Clone(salt), sum[:]...))
}

func definitionsOf(t topology.Topology, vhost string) definitions {
	d := definitions{Queues: []queueDefinition{}, Exchanges: []exchangeDefinition{}, Bindings: []bindingDefinition{}}
	for _, q := range t.Queues {
		d.Queues = append(d.Queues, queueDefinition{Name: q.Name, Vhost: vhost, Durable: true, Arguments: q.Table()})
	}
	for _, e := range t.Exchanges {
		d.Exchanges = append(d.Exchanges, exchangeDefinition{
			Name: e.Name, Vhost: vhost, Type: e.Kind, Durable: true, AutoDelete: e.AutoDelete, Internal: e.Internal, Arguments: e.Table(),
		})
	}
	for _, b := range t.Bindings {
		to, kind := target(b)
		d.Bindings = append(d.Bindings, bindingDefinition{
			Source: b.Exchange, Vhost: vhost, Destination: to, DestinationType: kind, RoutingKey: b.RoutingKey, Arguments: table(b.Arguments),
		})
	}
	return d
}

func indented(d definitions) ([]byte, error) {
	text, err := json.MarshalIndent(d, "", "  ")
	return append(text, '\n'), err
}

type definitions struct {
	Vhosts      []vhostDefinition      `json:"vhosts,omitempty"`
	Users       []userDefinition       `json:"users,omitempty"`
	Permissions []permissionDefinition `json:"permissions,omitempty"`

	Exchanges []exchangeDefinition `json:"exchanges"`
	Queues    []queueDefinition    `json:"queues"`
	Bindings  []bindingDefinition  `json:"bindings"`
}

type vhostDefinition struct {
	Name string `json:"name"`
}

type userDefinition struct {
	Name             string   `json:"name"`
	PasswordHash     string   `json:"password_hash"`
	HashingAlgorithm string   `json:"hashing_algorithm"`
	Tags             []string `json:"tags"`
}

type permissionDefinition struct {
	User      string `json:"user"`
	Vhost     string `json:"vhost"`
	Configure string `json:"configure"`
	Write     string `json:"write"`
	Read      string `json:"read"`
}

type exchangeDefinition struct {
	Name       string         `json:"name"`
	Vhost      string         `json:"vhost"`
	Type       string         `json:"type"`
	Durable    bool           `json:"durable"`
	AutoDelete bool           `json:"auto_delete"`
	Internal   bool           `json:"internal"`
	Arguments  map[string]any `json:"arguments"`
}

type queueDefinition struct {
	Name       string         `json:"name"`
	Vhost      string         `json:"vhost"`
	Durable    bool           `json:"durable"`
	AutoDelete bool           `json:"auto_delete"`
	Arguments  map[string]any `json:"arguments"`
}

type bindingDefinition struct {
	Source          string         `json:"source"`
	Vhost           string         `json:"vhost"`
	Destination     string         `json:"destination"`
	DestinationType string         `json:"destination_type"`
	RoutingKey      string         `json:"routing_key"`
	Arguments       map[string]any `json:"arguments"`
}

// target returns the destination of a binding.
func target(b topology.Binding) (name, kind string) {
	if b.ToExchange != "" {
		return b.ToExchange, "exchange"
	}
	return b.Queue, "queue"
}

// table converts a nil map to an empty one, because the broker expects an object.
func table(t map[string]any) map[string]any {
	if t == nil {
		return map[string]any{}
	}
	return t
}

package export

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/rabbitdelay/rabbitdelay/internal/argument"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// KubernetesOptions contains the names that the resources refer to.
type KubernetesOptions struct {
	Vhost string
	// Cluster is the name of the RabbitmqCluster. It is required. ClusterNamespace is its namespace. If it is empty,
	// the namespace of the manifests is used.
	Cluster, ClusterNamespace string
	// Namespace is the namespace of the manifests. If it is empty, the namespace of `kubectl apply -n` is used.
	Namespace string
}

// ErrKubernetes is wrapped by the errors for objects that the operator's resources cannot express.
var ErrKubernetes = errors.New("not supported by the messaging topology operator")

// Kubernetes returns the topology as resources of RabbitMQ's messaging topology operator (rabbitmq.com/v1beta1: Queue,
// Exchange, Binding), in one YAML stream. Queues stay on the broker when their resources are deleted (deletionPolicy:
// retain). An operator that is too old for this setting deletes a queue only if it is empty. Kubernetes returns
// ErrKubernetes for an internal exchange, for which there is no resource.
func Kubernetes(t topology.Topology, o KubernetesOptions) ([]byte, error) {
	if !isName(o.Cluster) {
		return nil, fmt.Errorf("the name of the RabbitmqCluster: %q; expected a Kubernetes name", o.Cluster)
	}
	for _, n := range []string{o.ClusterNamespace, o.Namespace} {
		if n != "" && !isName(n) {
			return nil, fmt.Errorf("namespace: %q; expected a Kubernetes name", n)
		}
	}
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	add := func(kind, name string, spec any) error {
		return enc.Encode(resource{"rabbitmq.com/v1beta1", kind, metadata{name, o.Namespace}, spec})
	}
	cluster := clusterReference{o.Cluster, o.ClusterNamespace}
	for _, e := range t.Exchanges {
		if e.Internal {
			return nil, fmt.Errorf("exchange %s is internal, which is %w; remove internal, or declare the exchange with rabbitdelay apply", e.Name, ErrKubernetes)
		}
		if err := add("Exchange", objectName(e.Name), exchangeSpec{e.Name, o.Vhost, e.Kind, true, e.AutoDelete, e.Table(), cluster}); err != nil {
			return nil, err
		}
	}
	for _, q := range t.Queues {
		arguments := q.Table()
		delete(arguments, argument.QueueType)
		if err := add("Queue", objectName(q.Name), queueSpec{q.Name, o.Vhost, string(q.QueueType()), true, arguments, true, "retain", cluster}); err != nil {
			return nil, err
		}
	}
	for _, b := range t.Bindings {
		to, kind := target(b)
		if err := add("Binding", bindingName(b), bindingSpec{o.Vhost, b.Exchange, to, kind, b.RoutingKey, b.Arguments, cluster}); err != nil {
			return nil, err
		}
	}
	err := enc.Close()
	return out.Bytes(), err
}

type resource struct {
	APIVersion string   `yaml:"apiVersion"`
	Kind       string   `yaml:"kind"`
	Metadata   metadata `yaml:"metadata"`
	Spec       any      `yaml:"spec"`
}

type metadata struct {
	Name      string `yaml:"name"`
	Namespace string `yaml:"namespace,omitempty"`
}

type clusterReference struct {
	Name      string `yaml:"name"`
	Namespace string `yaml:"namespace,omitempty"`
}

type exchangeSpec struct {
	Name       string           `yaml:"name"`
	Vhost      string           `yaml:"vhost"`
	Type       string           `yaml:"type"`
	Durable    bool             `yaml:"durable"`
	AutoDelete bool             `yaml:"autoDelete,omitempty"`
	Arguments  map[string]any   `yaml:"arguments,omitempty"`
	Cluster    clusterReference `yaml:"rabbitmqClusterReference"`
}

type queueSpec struct {
	Name           string           `yaml:"name"`
	Vhost          string           `yaml:"vhost"`
	Type           string           `yaml:"type"`
	Durable        bool             `yaml:"durable"`
	Arguments      map[string]any   `yaml:"arguments,omitempty"`
	DeleteIfEmpty  bool             `yaml:"deleteIfEmpty"`
	DeletionPolicy string           `yaml:"deletionPolicy"`
	Cluster        clusterReference `yaml:"rabbitmqClusterReference"`
}

type bindingSpec struct {
	Vhost           string           `yaml:"vhost"`
	Source          string           `yaml:"source"`
	Destination     string           `yaml:"destination"`
	DestinationType string           `yaml:"destinationType"`
	RoutingKey      string           `yaml:"routingKey,omitempty"`
	Arguments       map[string]any   `yaml:"arguments,omitempty"`
	Cluster         clusterReference `yaml:"rabbitmqClusterReference"`
}

// maxName is the maximum length of a resource's name in Kubernetes.
const maxName = 253

var (
	validName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	foreign   = regexp.MustCompile(`[^a-z0-9]+`)
)

func isName(s string) bool { return len(s) <= maxName && validName.MatchString(s) }

// objectName returns the name of an object if Kubernetes allows it. Otherwise it returns a readable form with a hash,
// so that two objects never have the same name.
func objectName(name string) string {
	if isName(name) {
		return name
	}
	return hashed(name, name)
}

func bindingName(b topology.Binding) string {
	to, kind := target(b)
	return hashed(b.Exchange+"-"+to, fmt.Sprintf("%q %q %s %q %v", b.Exchange, to, kind, b.RoutingKey, b.Arguments))
}

func hashed(readable, whole string) string {
	sum := sha256.Sum256([]byte(whole))
	hash := hex.EncodeToString(sum[:6])
	text := foreign.ReplaceAllString(strings.ToLower(readable), "-")
	if most := maxName - len(hash) - 1; len(text) > most {
		text = text[:most]
	}
	return strings.TrimLeft(strings.Trim(text, "-")+"-"+hash, "-")
}

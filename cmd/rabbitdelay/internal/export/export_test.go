package export_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/export"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// described returns a layout with destinations whose names Kubernetes does not allow.
func described(t *testing.T) topology.Topology {
	t.Helper()
	b, err := dlx.NewBucket(dlx.BucketConfig{Layout: dlx.LayoutBinary})
	if err != nil {
		t.Fatal(err)
	}
	top := b.Topology()
	for _, q := range []string{"orders.expire", "Orders.Expire", "orders_expire", "*", strings.Repeat("long.", 45), "-", "ü"} {
		d := topology.Destination{Queue: q}
		if top, err = top.Merge(topology.Topology{Queues: d.Queues(topology.Quorum), Bindings: b.Bindings(d)}); err != nil {
			t.Fatalf("queue %s: %v", q, err)
		}
	}
	return top
}

// manifest contains the fields of a resource that the test reads.
type manifest struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string
	Metadata   struct{ Name, Namespace string }
	Spec       map[string]any
}

func TestKubernetes(t *testing.T) {
	top := described(t)
	text, err := export.Kubernetes(top, export.KubernetesOptions{Vhost: "shop", Cluster: "rabbit", ClusterNamespace: "infra", Namespace: "shop"})
	if err != nil {
		t.Fatal(err)
	}
	dec := yaml.NewDecoder(bytes.NewReader(text))
	named, objects := map[string]bool{}, map[string]map[string]any{}
	name := regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	for {
		var m manifest
		err := dec.Decode(&m)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		n := m.Metadata.Name
		if !name.MatchString(n) || len(n) > 253 {
			t.Errorf("%s %q is not a valid Kubernetes name", m.Kind, n)
		}
		if named[m.Kind+n] {
			t.Errorf("two manifests of kind %s have the name %s, want unique names", m.Kind, n)
		}
		named[m.Kind+n] = true
		cluster, _ := m.Spec["rabbitmqClusterReference"].(map[string]any)
		if m.APIVersion != "rabbitmq.com/v1beta1" {
			t.Errorf(`%s %s: version %s, want "rabbitmq.com/v1beta1"`, m.Kind, n, m.APIVersion)
		}
		if m.Metadata.Namespace != "shop" {
			t.Errorf(`%s %s: namespace %s, want "shop"`, m.Kind, n, m.Metadata.Namespace)
		}
		if m.Spec["vhost"] != "shop" {
			t.Errorf(`%s %s: virtual host %v, want "shop"`, m.Kind, n, m.Spec["vhost"])
		}
		if cluster["name"] != "rabbit" {
			t.Errorf(`%s %s: cluster %v, want "rabbit"`, m.Kind, n, cluster["name"])
		}
		if cluster["namespace"] != "infra" {
			t.Errorf(`%s %s: namespace of the cluster %v, want "infra"`, m.Kind, n, cluster["namespace"])
		}
		if object, ok := m.Spec["name"].(string); ok {
			objects[m.Kind+" "+object] = m.Spec
		}
	}
	if len(named) != len(top.Exchanges)+len(top.Queues)+len(top.Bindings) {
		t.Errorf("got %d manifests, want one for each of %d exchanges, %d queues and %d bindings", len(named), len(top.Exchanges), len(top.Queues), len(top.Bindings))
	}
	q := objects["Queue delay.bucket.binary.1s"]
	arguments, _ := q["arguments"].(map[string]any)
	for key, want := range map[string]any{"type": "quorum", "durable": true, "deletionPolicy": "retain"} {
		if q[key] != want {
			t.Errorf("the queue's %s is %v, want %v", key, q[key], want)
		}
	}
	for key, want := range map[string]any{"x-message-ttl": 1000, "x-queue-type": nil} {
		if arguments[key] != want {
			t.Errorf("the queue's argument %s is %v, want %v", key, arguments[key], want)
		}
	}
	if x := objects["Exchange delay.deliver"]; x["type"] != "topic" || x["durable"] != true {
		t.Errorf(`exchange delay.deliver: got %v, want type = "topic" and durable = true`, x)
	}
}

func TestKubernetesRefuses(t *testing.T) {
	for _, o := range []export.KubernetesOptions{
		{},
		{Cluster: "Rabbit"},
		{Cluster: "r", Namespace: "a/b"},
		{Cluster: "r", ClusterNamespace: "-"},
	} {
		if _, err := export.Kubernetes(topology.Topology{}, o); err == nil {
			t.Errorf("Kubernetes with %+v: got no error", o)
		}
	}
	internal := topology.Topology{Exchanges: []topology.Exchange{{Name: "x", Kind: "fanout", Internal: true}}}
	if _, err := export.Kubernetes(internal, export.KubernetesOptions{Vhost: "/", Cluster: "r"}); !errors.Is(err, export.ErrKubernetes) {
		t.Errorf("an internal exchange: got %v, want export.ErrKubernetes", err)
	}
}

// The broker expects arguments as an object and lists as arrays, even if they are empty.
func TestDefinitionsHaveObjectsAndLists(t *testing.T) {
	for _, top := range []topology.Topology{{}, described(t)} {
		text, err := export.Definitions(top, "a/b")
		if err != nil {
			t.Fatalf("%+v: %v", top, err)
		}
		var lists map[string][]map[string]any
		if err := json.Unmarshal(text, &lists); err != nil {
			t.Fatalf("decoding the definitions: %v: %s", err, text)
		}
		if bytes.Contains(text, []byte("null")) {
			t.Errorf("got the definitions %s, want no null in them", text)
		}
		for kind, want := range map[string]int{
			"exchanges": len(top.Exchanges),
			"queues":    len(top.Queues),
			"bindings":  len(top.Bindings),
		} {
			if got := len(lists[kind]); got != want {
				t.Errorf("got %d %s, want %d", got, kind, want)
			}
		}
		for kind, list := range lists {
			for _, o := range list {
				if o["vhost"] != "a/b" || kind != "bindings" && o["durable"] != true {
					t.Errorf(`got %v, want vhost = "a/b" and durable = true`, o)
				}
			}
		}
	}
}

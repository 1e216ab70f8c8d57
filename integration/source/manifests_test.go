package source

import (
	"errors"
	"io"
	"os"
	"testing"

	"go.yaml.in/yaml/v3"
)

type manifest struct {
	Kind     string
	Metadata struct{ Name string }
	Spec     struct {
		Template struct {
			Spec struct {
				Automount      *bool            `yaml:"automountServiceAccountToken"`
				Context        map[string]any   `yaml:"securityContext"`
				InitContainers []containerOfPod `yaml:"initContainers"`
				Containers     []containerOfPod
			}
		}
	}
}

type containerOfPod struct {
	Name, Image string
	Context     map[string]any `yaml:"securityContext"`
	Resources   struct{ Limits map[string]any }
}

// The pods in the manifests have no Kubernetes token, and rabbitdelay's containers run without privileges and with a
// memory limit.
func TestManifestsOfPods(t *testing.T) {
	f, err := os.Open("docs/kubernetes/rabbitdelay.yaml")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	kinds := map[string]int{}
	for d := yaml.NewDecoder(f); ; {
		var m manifest
		if err := d.Decode(&m); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		kinds[m.Kind]++
		pod := m.Spec.Template.Spec
		if len(pod.Containers) == 0 {
			continue
		}
		if pod.Automount == nil || *pod.Automount {
			t.Errorf("%s %s: its pods mount a service account token, want automountServiceAccountToken: false", m.Kind, m.Metadata.Name)
		}
		for _, c := range append(pod.InitContainers, pod.Containers...) {
			if c.Image != "rabbitdelay:latest" {
				continue // the reader's own image
			}
			if c.Context["allowPrivilegeEscalation"] != false || pod.Context["runAsNonRoot"] != true {
				t.Errorf("%s %s: container %s may gain privileges, want allowPrivilegeEscalation: false and runAsNonRoot: true", m.Kind, m.Metadata.Name, c.Name)
			}
			if c.Resources.Limits["memory"] == nil {
				t.Errorf("%s %s: container %s has no memory limit, want one", m.Kind, m.Metadata.Name, c.Name)
			}
		}
	}
	for _, kind := range []string{"Job", "Deployment", "PodDisruptionBudget", "NetworkPolicy"} {
		if kinds[kind] == 0 {
			t.Errorf("the manifests contain no %s, want at least one", kind)
		}
	}
}

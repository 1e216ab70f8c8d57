package source

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// kustomizeVersion is built with `go run`, so that it is not a dependency of the SDK's modules.
const kustomizeVersion = "sigs.k8s.io/kustomize/kustomize/v5@v5.7.1"

// built is a resource in kustomize's output.
type built struct {
	Kind     string
	Metadata struct{ Name string }
	Spec     struct {
		TTL      *int `yaml:"ttlSecondsAfterFinished"`
		Template struct {
			Spec struct {
				InitContainers []struct{ Image string } `yaml:"initContainers"`
				Containers     []struct{ Image string }
				Volumes        []struct {
					ConfigMap struct{ Name string } `yaml:"configMap"`
				}
			}
		}
	}
}

// kustomize builds a folder and returns the resources by kind and name.
func kustomize(t *testing.T, folder string) map[string]built {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "run", kustomizeVersion, "build", "--load-restrictor", "LoadRestrictionsNone", folder)
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "CGO_ENABLED=0")
	if path := os.Getenv("KUSTOMIZE"); path != "" {
		cmd = exec.CommandContext(t.Context(), path, "build", "--load-restrictor", "LoadRestrictionsNone", folder)
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil && strings.Contains(stderr.String(), "dial tcp") || strings.Contains(stderr.String(), "module lookup disabled") {
		t.Skipf("skipped: Go's module proxy does not answer: %s", stderr.String())
	}
	if err != nil {
		t.Fatalf("kustomize build: %v: %s", err, stderr.String())
	}
	all := map[string]built{}
	for d := yaml.NewDecoder(strings.NewReader(string(out))); ; {
		var x built
		if err := d.Decode(&x); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all[x.Kind+" "+x.Metadata.Name] = x
	}
}

// A second deployment with another image and other settings prepares the broker again, because the finished job has
// been deleted, and updates the relay, because the ConfigMap has another name.
func TestKustomize(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped: kustomize takes minutes to compile")
	}
	base, err := filepath.Abs("docs/kubernetes")
	if err != nil {
		t.Fatal(err)
	}
	overlay := t.TempDir()
	relative, err := filepath.Rel(overlay, base)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"settings.yaml": "destinations: [{queue: orders.expire}, {queue: orders.remind}]\n",
		"kustomization.yaml": "resources: [" + relative + "]\n" +
			"images: [{name: rabbitdelay, newTag: 0.2.0}]\n" +
			"configMapGenerator: [{name: rabbitdelay, behavior: replace, files: [rabbitdelay.yaml=settings.yaml]}]\n",
	} {
		if err := os.WriteFile(filepath.Join(overlay, name), []byte(text), 0o600); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	first, second := kustomize(t, base), kustomize(t, overlay)
	settings := func(all map[string]built, resource string) string {
		x := all[resource].Spec.Template.Spec
		if len(x.Volumes) != 1 {
			t.Fatalf("%s has %d volumes, want 1", resource, len(x.Volumes))
		}
		name := x.Volumes[0].ConfigMap.Name
		if _, ok := all["ConfigMap "+name]; !ok {
			t.Errorf("%s: the ConfigMap %q is not in the output, want it included", resource, name)
		}
		return name
	}
	for _, resource := range []string{"Job rabbitdelay-prepare", "Deployment rabbitdelay-relay"} {
		if a, b := settings(first, resource), settings(second, resource); a == b {
			t.Errorf("%s: different settings have the same ConfigMap name %s, want different names", resource, a)
		}
		pod := second[resource].Spec.Template.Spec
		for _, c := range append(pod.InitContainers, pod.Containers...) {
			if c.Image != "rabbitdelay:0.2.0" {
				t.Errorf(`%s: image %s, want "rabbitdelay:0.2.0"`, resource, c.Image)
			}
		}
	}
	if second["Job rabbitdelay-prepare"].Spec.TTL == nil {
		t.Error("the job has no TTL, want one so that a later deployment can create it again")
	}
}

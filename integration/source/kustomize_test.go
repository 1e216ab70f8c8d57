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

// kustomize builds a folder and returns the resources. The only Job has the key "Job", because its name is generated,
// and the others have their kind and name.
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
		key := x.Kind + " " + x.Metadata.Name
		if x.Kind == "Job" {
			key = x.Kind
		}
		all[key] = x
	}
}

// overlay writes an overlay of the base and returns its folder. It has an image tag and settings of its own, unless they
// are empty.
func overlay(t *testing.T, tag, settings string) string {
	t.Helper()
	base, err := filepath.Abs("docs/kubernetes")
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	relative, err := filepath.Rel(folder, base)
	if err != nil {
		t.Fatal(err)
	}
	text := "namePrefix: shop-\nresources: [" + relative + "]\n"
	if tag != "" {
		text += "images: [{name: rabbitdelay, newName: registry.example/rabbitdelay, newTag: " + tag + "}]\n"
	}
	if settings != "" {
		text += "configMapGenerator: [{name: rabbitdelay, behavior: merge, files: [rabbitdelay.yaml=settings.yaml]}]\n"
	}
	for name, text := range map[string]string{"settings.yaml": settings, "kustomization.yaml": text} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	return folder
}

// A deployment with another image or other settings prepares the broker again and updates the relay, even if an earlier
// job still exists, because the Job and the ConfigMap have other names. An unchanged deployment keeps the names.
func TestKustomize(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped: kustomize takes minutes to compile")
	}
	const settings = "destinations: [{queue: orders.expire}, {queue: orders.remind}]\n"
	jobs, configMaps := map[string]string{}, map[string]string{}
	for _, c := range []struct{ name, tag, settings, image string }{
		{"the base's", "", "", "rabbitdelay:latest"},
		{"another image", "0.2.0", "", "registry.example/rabbitdelay:0.2.0"},
		{"other settings", "", settings, "rabbitdelay:latest"},
		{"another image and other settings", "0.2.0", settings, "registry.example/rabbitdelay:0.2.0"},
	} {
		all := kustomize(t, overlay(t, c.tag, c.settings))
		for _, resource := range []string{"Job", "Deployment shop-rabbitdelay-relay"} {
			pod := all[resource].Spec.Template.Spec
			if len(pod.Volumes) != 1 {
				t.Fatalf("%s: %s has %d volumes, want 1", c.name, resource, len(pod.Volumes))
			}
			name := pod.Volumes[0].ConfigMap.Name
			if _, ok := all["ConfigMap "+name]; !ok {
				t.Errorf("%s: %s: the ConfigMap %q is not in the output, want it included", c.name, resource, name)
			}
			for _, container := range append(pod.InitContainers, pod.Containers...) {
				if container.Image != c.image {
					t.Errorf("%s: %s: got the image %s, want %s", c.name, resource, container.Image, c.image)
				}
			}
			configMaps[name] = c.name
		}
		job := all["Job"]
		if other, ok := jobs[job.Metadata.Name]; ok {
			t.Errorf("%s: the Job has the same name as that of %s, %s, want another, because a job cannot be changed", c.name, other, job.Metadata.Name)
		}
		jobs[job.Metadata.Name] = c.name
		if job.Spec.TTL == nil {
			t.Errorf("%s: the job has no TTL, want one so that it is deleted", c.name)
		}
	}
	if len(configMaps) != 4 {
		t.Errorf("got the ConfigMaps %q, want a name for each of the 4 deployments", configMaps)
	}
	if again := kustomize(t, overlay(t, "0.2.0", settings))["Job"].Metadata.Name; jobs[again] != "another image and other settings" {
		t.Errorf("the same deployment again: got the Job %s, want the name of before: %q", again, jobs)
	}
}

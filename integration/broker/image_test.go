package broker

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestVersionsAreOrdered(t *testing.T) {
	versions := []string{"4.3.6", "3.10.8", "4.0.5", "3.9.1", "4.0.10", "4"}
	slices.SortFunc(versions, compareVersions)
	if want := []string{"3.9.1", "3.10.8", "4", "4.0.5", "4.0.10", "4.3.6"}; !slices.Equal(versions, want) {
		t.Errorf("got %v, want %v", versions, want)
	}
}

func TestMatches(t *testing.T) {
	for _, c := range []struct {
		version, wanted string
		want            bool
	}{
		{"4.3.6", "4.3", true},
		{"4.3.6", "4.3.6", true},
		{"4.3.6", "4", true},
		{"4.30.6", "4.3", false},
		{"3.10.8", "3.1", false},
		{"", "4.3", false},
	} {
		if got := matches(c.version, c.wanted); got != c.want {
			t.Errorf("matches(%q, %q) = %t, want %t", c.version, c.wanted, got, c.want)
		}
	}
}

func TestLine(t *testing.T) {
	for version, want := range map[string]string{"4.3.6": "4.3", "3.10": "3.10", "4": "4", "": "", "4.0.0-rc.1": "4.0"} {
		if got := line(version); got != want {
			t.Errorf("line(%q) = %q, want %q", version, got, want)
		}
	}
}

func TestOfficialTags(t *testing.T) {
	for tag, want := range map[string]string{"4-management": "4", "3.13.7-management-alpine": "3.13.7", "4.1": "4.1", "latest": "", "4.1-rc": ""} {
		parts := officialTag.FindStringSubmatch(tag)
		if got := append(parts, "", "")[min(1, len(parts))]; got != want {
			t.Errorf("officialTag found the version %[2]q in %[1]q, want %[3]q", tag, got, want)
		}
	}
}

func TestPluginAvailable(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(EnvPluginDir, dir)
	path, reason := PluginAvailable("4.0.5")
	if path != "" || reason != "plugin not found in "+filepath.Join(dir, "4.0") {
		t.Errorf(`got path %q and reason %q, want "" and "plugin not found in " followed by the directory`, path, reason)
	}
	want := filepath.Join(dir, "4.0", pluginName+"-4.0.7.ez")
	if err := os.Mkdir(filepath.Dir(want), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(want, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, version := range []string{"4.0", "4.0.5"} {
		if path, reason := PluginAvailable(version); path != want || reason != "" {
			t.Errorf(`version %s: got %q, %q, want %q and ""`, version, path, reason, want)
		}
	}
	if _, reason := PluginAvailable("4.1"); !strings.HasSuffix(reason, "4.1") {
		t.Errorf(`got the reason %q, want it to end with "4.1"`, reason)
	}
}

// The short form of the error omits Docker's own text, which does not help a user without access to the registry.
func TestBrief(t *testing.T) {
	pull := errors.New("failed to resolve reference: dial tcp: lookup registry on 127.0.0.1:53: no such host")
	err := fmt.Errorf("start: %w", &noImageError{version: "4.3", pulled: "rabbitmq:4.3-management", err: pull})
	if got, want := brief(err), "no container image available"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if !strings.Contains(err.Error(), pull.Error()) {
		t.Errorf("got error %q, want it to contain Docker's error %q", err, pull)
	}
	if !errors.Is(err, pull) {
		t.Errorf("got error %v, want it to wrap Docker's error", err)
	}
	if got, want := brief(errors.New("docker does not answer")), "no container (docker does not answer)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

package broker

import (
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/testcontainers/testcontainers-go"
)

// A Preload is what the process of a broker loads before its own libraries, with the
// environment that those read. The zero value is nothing.
type Preload struct {
	libraries []string // paths
	env       []string
}

// Hasty is what spares a broker the wait for the disk, where libeatmydata is installed. What
// was written outlives the broker's process then, but not the machine's power.
func Hasty() Preload {
	return Preload{libraries: firstOf("/usr/lib/*/libeatmydata.so")}
}

// firstOf returns the first file that matches a good pattern, or none.
func firstOf(pattern string) []string {
	found, _ := filepath.Glob(pattern)
	return found[:min(1, len(found))]
}

// With returns both.
func (p Preload) With(more Preload) Preload {
	return Preload{libraries: slices.Concat(p.libraries, more.libraries), env: slices.Concat(p.env, more.env)}
}

// variables are the environment of a process that loads it.
func (p Preload) variables() []string {
	if len(p.libraries) == 0 {
		return nil
	}
	return append([]string{"LD_PRELOAD=" + strings.Join(p.libraries, ":")}, p.env...)
}

// ContainerFiles have the broker of a container load it, from the moment on when it has become
// the user that it runs as.
func (p Preload) ContainerFiles() []testcontainers.ContainerFile {
	if len(p.libraries) == 0 {
		return nil
	}
	var files []testcontainers.ContainerFile
	inside := Preload{env: p.env}
	for _, library := range p.libraries {
		there := path.Join("/usr/local/lib", filepath.Base(library))
		inside.libraries = append(inside.libraries, there)
		files = append(files, testcontainers.ContainerFile{HostFilePath: library, ContainerFilePath: there, FileMode: 0o755})
	}
	var env strings.Builder
	for _, v := range inside.variables() {
		fmt.Fprintf(&env, "export %s\n", v)
	}
	return append(files, testcontainers.ContainerFile{
		Reader: strings.NewReader(env.String()), ContainerFilePath: "/etc/rabbitmq/rabbitmq-env.conf", FileMode: 0o644,
	})
}

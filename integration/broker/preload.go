package broker

import (
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/testcontainers/testcontainers-go"
)

// A Preload is a set of libraries that a broker's process loads before its own ones (LD_PRELOAD), and the environment
// that these libraries read. The zero value loads nothing.
type Preload struct {
	libraries []string // paths
	env       []string
}

// Hasty returns a Preload that makes a broker skip syncing to the disk, if libeatmydata is installed. Written data then
// survives the death of the broker's process, but not a power failure of the machine.
func Hasty() Preload {
	return Preload{libraries: firstOf("/usr/lib/*/libeatmydata.so")}
}

// firstOf returns the first file that matches a valid pattern, or an empty slice.
func firstOf(pattern string) []string {
	found, _ := filepath.Glob(pattern)
	return found[:min(1, len(found))]
}

// With returns the combination of both Preloads.
func (p Preload) With(more Preload) Preload {
	return Preload{libraries: slices.Concat(p.libraries, more.libraries), env: slices.Concat(p.env, more.env)}
}

// variables returns the environment variables for a process that loads it.
func (p Preload) variables() []string {
	if len(p.libraries) == 0 {
		return nil
	}
	return append([]string{"LD_PRELOAD=" + strings.Join(p.libraries, ":")}, p.env...)
}

// ContainerFiles returns files that make the broker of a container load the libraries. They take effect after the
// broker has switched to the user that it runs as.
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

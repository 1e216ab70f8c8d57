package database

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/rabbitdelay/rabbitdelay/integration/loopback"
)

// postgreSQL is the engine for PostgreSQL. It holds the directory of its programs.
type postgreSQL struct {
	installed

	bin string
}

// findPostgreSQL returns the engine for the newest version that Debian has installed, or else for the version in the
// path. Debian keeps each major version in its own directory outside the path.
func findPostgreSQL() (engine, error) {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb") // the pattern is valid
	if len(found) > 0 {
		major := func(path string) int {
			n, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(path))))
			return n
		}
		newest := slices.MaxFunc(found, func(a, b string) int { return major(a) - major(b) })
		return postgreSQL{bin: filepath.Dir(newest)}, nil
	}
	path, err := exec.LookPath("initdb")
	if err != nil {
		return nil, missing("initdb", "postgresql")
	}
	return postgreSQL{bin: filepath.Dir(path)}, nil
}

func (p postgreSQL) program(name string) string { return filepath.Join(p.bin, name) }

func (p postgreSQL) prepare(ctx context.Context, s *Server) error {
	if err := s.write("password", s.instance.password); err != nil {
		return err
	}
	in := func(file string) string { return filepath.Join(s.instance.dir, file) }
	err := s.finish(ctx, p.program("initdb"), "--pgdata="+in("data"), "--username="+name, "--pwfile="+in("password"),
		"--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync")
	return errors.Join(err, os.Remove(in("password")))
}

func (p postgreSQL) command(i instance) []string {
	settings := []string{
		"listen_addresses=" + loopback.Host,
		"port=" + strconv.Itoa(i.port),
		"unix_socket_directories=", // none
		"max_connections=200",
		"dynamic_shared_memory_type=mmap", // in the directory, which is removed even after a kill
	}
	if !i.durable {
		settings = append(settings, "fsync=off", "full_page_writes=off")
	}
	if i.counts {
		settings = append(settings, "shared_preload_libraries=pg_stat_statements")
	}
	command := []string{p.program("postgres"), "-D", filepath.Join(i.dir, "data")}
	for _, setting := range settings {
		command = append(command, "-c", setting)
	}
	return command
}

// ready creates the database, unless it already exists because this is not the server's first start.
func (p postgreSQL) ready(ctx context.Context, i instance) error {
	cmd := exec.CommandContext(ctx, p.program("createdb"), "--host="+loopback.Host, "--port="+strconv.Itoa(i.port),
		"--username="+name, "--no-password", "--maintenance-db=postgres", name)
	cmd.Env = append(os.Environ(), "PGPASSWORD="+i.password, "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	if err != nil && !strings.Contains(string(out), "already exists") {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

func (postgreSQL) url(i instance) string {
	return fmt.Sprintf("postgres://%s:%s@%s/%s", name, i.password, loopback.Address(i.port), name)
}

// stopSignal returns the signal for a shutdown that does not wait for clients to disconnect.
func (postgreSQL) stopSignal() os.Signal { return syscall.SIGINT }

func (postgreSQL) account() string { return "postgres" }

package database

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/integration/loopback"
)

// mySQL is the engine for MySQL's own server. Debian has it only in sid, and it cannot be installed together with
// MariaDB's server.
type mySQL struct{ mariaDB } // the server accepts MariaDB's command line

// findMySQL returns the engine for an installed server or, if there is none, for an image.
func findMySQL(ctx context.Context) (engine, error) {
	path, err := lookProgram("mysqld", "mysql-server-core")
	if err == nil {
		out, versionErr := exec.CommandContext(ctx, path, "--no-defaults", "--version").Output()
		if versionErr == nil && !strings.Contains(string(out), "MariaDB") {
			return mySQL{mariaDB{server: path}}, nil
		}
		err = fmt.Errorf("%w: %s belongs to MariaDB and not to MySQL", ErrNotInstalled, path)
	}
	image, imageErr := mySQLImage(ctx)
	if imageErr == nil {
		return mySQLContainer{image: image}, nil
	}
	return nil, errors.Join(err, imageErr)
}

func (m mySQL) prepare(ctx context.Context, s *Server) error {
	if err := m.writeInit(s); err != nil {
		return err
	}
	return s.finish(ctx, m.server, "--no-defaults", "--initialize-insecure", "--datadir="+filepath.Join(s.instance.dir, "data"))
}

func (m mySQL) command(i instance) []string {
	return append(m.mariaDB.command(i), mySQLSettings(i)...)
}

// mySQLSettings returns the settings that MariaDB's server does not support.
func mySQLSettings(i instance) []string {
	settings := []string{"--mysqlx=OFF", "--secure-file-priv=NULL"}
	if !i.durable {
		settings = append(settings, "--disable-log-bin")
	}
	return settings
}

// mySQLImages lists the repository of the images that `make images` builds, and the official one.
var mySQLImages = []string{"rabbitdelay/mysql", "mysql"}

// mySQLImage returns the ID of an available image.
func mySQLImage(ctx context.Context) (string, error) {
	for _, repository := range mySQLImages {
		out, err := docker(ctx, "image", "ls", "--quiet", "--no-trunc", repository)
		if err != nil {
			return "", fmt.Errorf("%w, and neither is an image: %w", ErrNotInstalled, err)
		}
		if id, _, _ := strings.Cut(out, "\n"); id != "" {
			return id, nil
		}
	}
	return "", fmt.Errorf("%w, and there is no image of it; `make images` builds %s", ErrNotInstalled, mySQLImages[0])
}

// mySQLContainer is the engine for a MySQL server in a container. Its process on this machine is the docker command
// that is attached to the container. The data lives as long as the container.
type mySQLContainer struct {
	mariaDB // for the greeting, which both servers send

	image string
}

func (mySQLContainer) prepare(_ context.Context, s *Server) error {
	s.instance.container = filepath.Base(s.instance.dir)
	if err := s.guard.Container(s.instance.container); err != nil {
		return err
	}
	// Pass the password in a file, because all users of the machine can read the arguments.
	return s.write("environment", fmt.Sprintf("MYSQL_DATABASE=%s\nMYSQL_ROOT_PASSWORD=%s\n", name, s.instance.password))
}

func (c mySQLContainer) command(i instance) []string {
	// A killed container may still be running. At the first start there is no container.
	if _, err := docker(context.Background(), "wait", i.container); err == nil {
		return dockerCommand("start", "--attach", i.container)
	}
	command := dockerCommand("run", "--name="+i.container, "--label=rabbitdelay=database", "--env-file="+filepath.Join(i.dir, "environment"),
		fmt.Sprintf("--publish=%s:3306", loopback.Address(i.port)), c.image)
	return append(append(command, serverSettings(i)...), mySQLSettings(i)...)
}

func (mySQLContainer) url(i instance) string { return mySQLURL("root", i) }

func (mySQLContainer) account() string { return "" }

// stopping stops the container itself. It does not rely on the attached command to forward a signal, because that
// command may exit before the container stops.
func (mySQLContainer) stopping(ctx context.Context, i instance) error {
	_, err := docker(ctx, "stop", "-t", "60", i.container)
	return err
}

func (mySQLContainer) killed(i instance) error {
	_, err := docker(context.Background(), "kill", i.container)
	if err != nil && (strings.Contains(err.Error(), "is not running") || strings.Contains(err.Error(), "No such container")) {
		return nil
	}
	return err
}

func (mySQLContainer) removed(i instance) error {
	_, err := docker(context.Background(), "rm", "--force", "--volumes", i.container)
	return err
}

// docker runs a docker command and returns its output.
func docker(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, startup)
	defer cancel()
	command := dockerCommand(args...)
	out, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput()
	text := strings.TrimSpace(string(out))
	if err != nil {
		return "", fmt.Errorf("docker %s: %w: %s", args[0], err, text)
	}
	return text, nil
}

// dockerCommand returns a docker command that uses the docker settings in the user's home directory. A server's process
// has a different home directory.
func dockerCommand(args ...string) []string {
	command := []string{"docker"}
	if home, err := os.UserHomeDir(); err == nil && os.Getenv("DOCKER_CONFIG") == "" {
		command = append(command, "--config="+filepath.Join(home, ".docker"))
	}
	return append(command, args...)
}

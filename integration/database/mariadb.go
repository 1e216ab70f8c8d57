package database

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/rabbitdelay/rabbitdelay/integration/loopback"
)

// mariaDB is the engine for MariaDB. It holds the paths of its programs.
type mariaDB struct {
	installed

	server, installer string
}

func findMariaDB() (engine, error) {
	server, err := lookProgram("mariadbd", "mariadb-server")
	if err != nil {
		return nil, err
	}
	installer, err := lookProgram("mariadb-install-db", "mariadb-server")
	if err != nil {
		return nil, err
	}
	return mariaDB{server: server, installer: installer}, nil
}

// writeInit writes the file that the server runs before it answers. It removes network access for the server's own root
// user.
func (mariaDB) writeInit(s *Server) error {
	return s.write("init.sql", fmt.Sprintf(`CREATE DATABASE IF NOT EXISTS %[1]s CHARACTER SET utf8mb4;
CREATE USER IF NOT EXISTS '%[1]s'@'%[2]s' IDENTIFIED BY '%[3]s';
GRANT ALL ON *.* TO '%[1]s'@'%[2]s' WITH GRANT OPTION;
DROP USER IF EXISTS 'root'@'127.0.0.1', 'root'@'::1';
`, name, loopback.Host, s.instance.password))
}

func (m mariaDB) prepare(ctx context.Context, s *Server) error {
	if err := m.writeInit(s); err != nil {
		return err
	}
	return s.finish(ctx, m.installer, "--no-defaults", "--datadir="+filepath.Join(s.instance.dir, "data"),
		"--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve")
}

func (m mariaDB) command(i instance) []string {
	return append([]string{
		m.server, "--no-defaults",
		"--datadir=" + filepath.Join(i.dir, "data"),
		"--socket=" + filepath.Join(i.dir, "socket"),
		"--pid-file=" + filepath.Join(i.dir, "pid"),
		"--init-file=" + filepath.Join(i.dir, "init.sql"),
		"--bind-address=" + loopback.Host,
		"--port=" + strconv.Itoa(i.port),
	}, serverSettings(i)...)
}

// serverSettings returns the settings that MySQL's server also supports, wherever it runs.
func serverSettings(i instance) []string {
	settings := []string{"--skip-name-resolve", "--character-set-server=utf8mb4", "--innodb-buffer-pool-size=64M"}
	if !i.durable {
		settings = append(settings, "--innodb-flush-log-at-trx-commit=2")
	}
	return settings
}

// ready waits for the server's greeting, which the server sends only after it has run its init file.
func (mariaDB) ready(ctx context.Context, i instance) error {
	conn, err := dial(ctx, i.port)
	if err != nil {
		return err
	}
	defer conn.Close()
	// The greeting starts with a header of four bytes, followed by the protocol version.
	var greeting [5]byte
	if _, err := io.ReadFull(conn, greeting[:]); err != nil {
		return err
	}
	const protocol = 10
	if greeting[4] != protocol {
		return errors.New("the server sends an error instead of a greeting")
	}
	return nil
}

func (mariaDB) url(i instance) string { return mySQLURL(name, i) }

func mySQLURL(user string, i instance) string {
	return fmt.Sprintf("mysql://%s:%s@%s/%s", user, i.password, loopback.Address(i.port), name)
}

func (mariaDB) stopSignal() os.Signal { return syscall.SIGTERM }

func (mariaDB) account() string { return "mysql" }

// dial connects for one request with a short response.
func dial(ctx context.Context, port int) (net.Conn, error) {
	const answer = 5 * time.Second
	conn, err := (&net.Dialer{Timeout: answer}).DialContext(ctx, "tcp", loopback.Address(port))
	if err != nil {
		return nil, err
	}
	if err := conn.SetDeadline(time.Now().Add(answer)); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

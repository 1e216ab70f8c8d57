package database

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"syscall"

	"github.com/rabbitdelay/rabbitdelay/integration/loopback"
)

// redis is the engine for Redis. It holds the path of its program.
type redis struct {
	installed

	server string
}

func findRedis() (engine, error) {
	server, err := lookProgram("redis-server", "redis-server")
	if err != nil {
		return nil, err
	}
	return redis{server: server}, nil
}

func (redis) prepare(_ context.Context, s *Server) error {
	// Pass the password in a file, because all users of the machine can read the arguments.
	return s.write("redis.conf", "requirepass "+s.instance.password+"\n")
}

func (r redis) command(i instance) []string {
	fsync := "no"
	if i.durable {
		fsync = "everysec"
	}
	command := []string{
		r.server, "redis.conf",
		"--bind", loopback.Host,
		"--port", strconv.Itoa(i.port),
		"--dir", i.dir,
	}
	if i.snapshot {
		return command
	}
	return append(command, "--save", "", "--appendonly", "yes", "--appendfsync", fsync)
}

func (redis) ready(ctx context.Context, i instance) error {
	conn, err := dial(ctx, i.port)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := fmt.Fprintf(conn, "AUTH %s\r\nPING\r\n", i.password); err != nil {
		return err
	}
	answers := bufio.NewReader(conn)
	for _, want := range []string{"+OK\r\n", "+PONG\r\n"} {
		got, err := answers.ReadString('\n')
		if err != nil {
			return err
		}
		if got != want {
			return fmt.Errorf("the server answered %q, want %q", got, want)
		}
	}
	return nil
}

func (redis) url(i instance) string {
	return fmt.Sprintf("redis://:%s@%s/0", i.password, loopback.Address(i.port))
}

func (redis) stopSignal() os.Signal { return syscall.SIGTERM }

func (redis) account() string { return "redis" }

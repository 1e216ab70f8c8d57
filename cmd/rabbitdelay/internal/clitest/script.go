package clitest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/config"
)

// Scripts runs every script in testdata/script against brokers in memory. With UPDATE_SCRIPTS=1 it updates the expected
// output in the scripts, for review.
func Scripts(t *testing.T) {
	t.Helper()
	p := params(func(o amqptest.Options) (Host, error) {
		b, err := startBroker(o)
		return inMemory{b}, err
	})
	p.Dir = "testdata/script"
	p.UpdateScripts = os.Getenv("UPDATE_SCRIPTS") == "1"
	testscript.Run(t, p)
}

// ScriptsOn runs script files with a built program against the brokers that open returns. What a script prints must be
// the same as with a broker in memory.
func ScriptsOn(t *testing.T, program string, open func(amqptest.Options) (Host, error), files ...string) {
	t.Helper()
	p := params(open)
	setup := p.Setup
	p.Setup = func(e *testscript.Env) error {
		e.Setenv("PATH", filepath.Dir(program)+string(filepath.ListSeparator)+e.Getenv("PATH"))
		return setup(e)
	}
	p.Files = files
	testscript.Run(t, p)
}

// params returns the parameters for running scripts, without the files.
func params(open func(amqptest.Options) (Host, error)) testscript.Params {
	return testscript.Params{
		Setup: func(e *testscript.Env) error {
			e.Setenv("HOME", e.WorkDir)
			e.Setenv("USER", "tester")
			// A users file is refused if its folder's group can write to it.
			if err := os.Chmod(e.WorkDir, 0o700); err != nil { //nolint:gosec // it is a folder
				return err
			}
			s := &state{open: open}
			e.Values[stateKey{}] = s
			e.Defer(s.close)
			return nil
		},
		RequireUniqueNames: true,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits":   exits,
			"session": session,
			"broker":  helper("broker"),
			"db":      helper("db"),
			"queue":   helper("queue"),
			"sql":     helper("sql"),
			"hung":    helper("hung"),
		},
	}
}

// state contains the resources that the helpers of one script have started.
type state struct {
	open   func(amqptest.Options) (Host, error)
	broker Host
	hung   []net.Listener
}

// stateKey is the key under which testscript stores a script's state.
type stateKey struct{}

func (s *state) close() {
	if s.broker != nil {
		s.broker.Close()
	}
	for _, l := range s.hung {
		_ = l.Close()
	}
}

// exits runs a program and checks its exit code.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits code program [args...]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	if got := run(ts, args[1], args[2:]...); got != want {
		ts.Fatalf("got exit code %d, want %d", got, want)
	}
}

// run runs a program and returns its exit code.
func run(ts *testscript.TestScript, name string, args ...string) int {
	err := ts.Exec(name, args...)
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}
	ts.Check(err)
	return 0
}

// helperFunc implements a command of scripts and returns its output.
type helperFunc func(s *state, ts *testscript.TestScript, args []string) (string, error)

var helpers = map[string]helperFunc{
	"broker": (*state).brokerCommand,
	"db":     (*state).dbCommand,
	"queue":  (*state).queueCommand,
	"sql":    (*state).sqlCommand,
	"hung":   (*state).hungCommand,
}

func helper(name string) func(*testscript.TestScript, bool, []string) {
	return func(ts *testscript.TestScript, neg bool, args []string) {
		if neg {
			ts.Fatalf("unsupported: ! %s", name)
		}
		text, err := help(ts, name, args)
		ts.Check(err)
		_, _ = io.WriteString(ts.Stdout(), text)
	}
}

func help(ts *testscript.TestScript, name string, args []string) (string, error) {
	s, _ := ts.Value(stateKey{}).(*state)
	return helpers[name](s, ts, args)
}

// errUsage is returned for arguments that a script command does not accept.
var errUsage = errors.New("wrong arguments; docs/development.md describes the commands of scripts")

// brokerCommand starts an in-memory broker and sets AMQP_URL, or acts on the running broker:
//
//	broker [version [plugin]]    start a broker of this version
//	broker stop                  stop the broker
//	broker calls METHOD          count how many times clients called an AMQP method
//	broker exchange NAME TYPE    declare an exchange; x-delayed-message exchanges behave like topic
func (s *state) brokerCommand(ts *testscript.TestScript, args []string) (string, error) {
	switch {
	case len(args) == 1 && args[0] == "stop":
		s.broker.Close()
		return "", nil
	case len(args) == 2 && args[0] == "calls":
		counts, ok := s.broker.(interface{ Calls(method string) int })
		if !ok {
			return "", errors.New("this broker does not count calls")
		}
		return fmt.Sprintln(counts.Calls(args[1])), nil
	case len(args) == 3 && args[0] == "exchange":
		return "", on(s.broker, func(ch *amqp.Channel) error {
			table := amqp.Table{}
			if args[2] == "x-delayed-message" {
				table["x-delayed-type"] = "topic"
			}
			return ch.ExchangeDeclare(args[1], args[2], true, false, false, false, table)
		})
	}
	o := amqptest.Options{Plugin: slices.Contains(args, "plugin")}
	if len(args) > 0 {
		o.Version = args[0]
	}
	if s.broker != nil {
		s.broker.Close()
	}
	b, err := s.open(o)
	if err != nil {
		return "", err
	}
	s.broker = b
	ts.Setenv("AMQP_URL", b.URL())
	return "", nil
}

// dbCommand creates a database and sets RABBITDELAY_DATABASE_URL:
//
//	db [FILE]    migrate a SQLite file, tasks.db by default
func (s *state) dbCommand(ts *testscript.TestScript, args []string) (string, error) {
	name := "tasks.db"
	if len(args) > 0 {
		name = args[0]
	}
	ts.Setenv("RABBITDELAY_DATABASE_URL", "sqlite:"+ts.MkAbs(name))
	if code := run(ts, "rabbitdelay", "migrate", "--quiet"); code != 0 {
		return "", fmt.Errorf("migrate: exit code %d", code)
	}
	return "", nil
}

// queueCommand inspects and fills queues:
//
//	queue                        list all queues
//	queue count                  count all queues
//	queue show NAME...           show how many messages are in queues
//	queue fill NAME [FILE]       declare a quorum queue and publish the messages of a YAML file to it
//	queue delete NAME            delete a queue with its messages
//	queue send EXCHANGE KEY FILE publish the messages of a YAML file to an exchange
func (s *state) queueCommand(ts *testscript.TestScript, args []string) (string, error) {
	var b strings.Builder
	switch {
	case len(args) == 0 || args[0] == "count" && len(args) == 1:
		names, err := s.broker.Queues()
		if err != nil {
			return "", err
		}
		if len(args) == 1 {
			return fmt.Sprintln(len(names)), nil
		}
		for _, name := range names {
			fmt.Fprintln(&b, name)
		}
	case args[0] == "show":
		for _, name := range args[1:] {
			line, err := s.broker.Describe(name)
			if err != nil {
				return "", err
			}
			fmt.Fprintln(&b, line)
		}
	case args[0] == "fill" && len(args) == 2:
		return "", on(s.broker, fill(args[1]))
	case args[0] == "fill" && len(args) == 3:
		list, err := decodeMessages(ts.ReadFile(args[2]))
		if err != nil {
			return "", err
		}
		return "", on(s.broker, fill(args[1], list...))
	case args[0] == "send" && len(args) == 4:
		list, err := decodeMessages(ts.ReadFile(args[3]))
		if err != nil {
			return "", err
		}
		return "", on(s.broker, func(ch *amqp.Channel) error { return publish(ch, args[1], args[2], list) })
	case args[0] == "delete" && len(args) == 2:
		return "", on(s.broker, func(ch *amqp.Channel) error {
			_, err := ch.QueueDelete(args[1], false, false, false)
			return err
		})
	default:
		return "", errUsage
	}
	return b.String(), nil
}

// sqlCommand runs a statement on the database at RABBITDELAY_DATABASE_URL and prints its rows.
func (s *state) sqlCommand(ts *testscript.TestScript, args []string) (string, error) {
	if len(args) != 1 {
		return "", errUsage
	}
	db, _, err := config.OpenDB(config.URL(ts.Getenv("RABBITDELAY_DATABASE_URL")))
	if err != nil {
		return "", err
	}
	defer func() { _ = db.Close() }()
	rows, err := db.QueryContext(context.Background(), args[0])
	if err != nil {
		return "", err
	}
	defer func() { _ = rows.Close() }()
	columns, err := rows.Columns()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for rows.Next() {
		values, at := make([]any, len(columns)), make([]any, len(columns))
		for i := range values {
			at[i] = &values[i]
		}
		if err := rows.Scan(at...); err != nil {
			return "", err
		}
		texts := make([]string, len(values))
		for i, v := range values {
			texts[i] = fmt.Sprint(v)
		}
		fmt.Fprintln(&b, strings.Join(texts, "|"))
	}
	return b.String(), rows.Err()
}

// hungCommand sets RABBITDELAY_DATABASE_URL to a server that accepts connections and never answers.
func (s *state) hungCommand(ts *testscript.TestScript, _ []string) (string, error) {
	l, err := Hung()
	if err != nil {
		return "", err
	}
	s.hung = append(s.hung, l)
	ts.Setenv("RABBITDELAY_DATABASE_URL", "postgres://shop:hunter2@"+l.Addr().String()+"/shop")
	ts.Setenv(answering, "300ms")
	return "", nil
}

// Hung returns a server that accepts connections and never answers.
func Hung() (net.Listener, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // closed by the caller
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(io.Discard, c); _ = c.Close() }()
		}
	}()
	return l, nil
}

// session runs the commands in a file and prints the file with their current output:
//
//	$ rabbitdelay tasks count
//	0 tasks
//	$ rabbitdelay tasks fly
//	! rabbitdelay: unknown command "fly"; see rabbitdelay tasks --help
//	[exit 1]
//
// A command is a shell command line or one of the helpers. Lines after it that start with > continue the command.
// Lines of standard error start with !. A line that starts with # is a comment, and a blank line before a comment is
// kept. Text that differs between runs is replaced by scrub.
func session(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: session file")
	}
	var b strings.Builder
	lines := strings.Split(strings.TrimSuffix(ts.ReadFile(args[0]), "\n"), "\n")
	for i := 0; i < len(lines); i++ {
		line := lines[i]
		before := i+1 < len(lines) && strings.HasPrefix(lines[i+1], "# ")
		if strings.HasPrefix(line, "# ") || line == "" && before {
			fmt.Fprintln(&b, line)
			continue
		}
		command, ok := strings.CutPrefix(line, "$ ")
		if !ok {
			continue // old output of the previous command
		}
		fmt.Fprintln(&b, line)
		typing := []string{command}
		for ; i+1 < len(lines) && strings.HasPrefix(lines[i+1], "> "); i++ {
			typing = append(typing, lines[i+1][2:])
			fmt.Fprintln(&b, lines[i+1])
		}
		command = strings.Join(typing, "\n")
		ts.Logf("%s", command)
		b.WriteString(scrub(ts, typed(ts, command)))
	}
	_, _ = io.WriteString(ts.Stdout(), b.String())
}

// typed runs one command of a session.
func typed(ts *testscript.TestScript, command string) string {
	words := split(command)
	if _, ok := helpers[words[0]]; ok {
		text, err := help(ts, words[0], words[1:])
		if err != nil {
			ts.Fatalf("%s: %v", command, err)
		}
		return text
	}
	code := run(ts, "sh", "-c", command)
	var b strings.Builder
	b.WriteString(ts.ReadFile("stdout"))
	for line := range strings.Lines(ts.ReadFile("stderr")) {
		b.WriteString("! " + line)
	}
	text := b.String()
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "(no newline at the end)\n"
	}
	if code != 0 {
		text += fmt.Sprintf("[exit %d]\n", code)
	}
	return text
}

// split splits a helper's command line into words. Single and double quotes keep a word together.
func split(line string) (words []string) {
	var word strings.Builder
	quote, begun := rune(0), false
	for _, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote == 0 && (r == '\'' || r == '"'):
			quote, begun = r, true
		case quote == 0 && (r == ' ' || r == '\n'):
			if begun {
				words = append(words, word.String())
				word.Reset()
				begun = false
			}
		default:
			word.WriteRune(r)
			begun = true
		}
	}
	if begun {
		words = append(words, word.String())
	}
	return words
}

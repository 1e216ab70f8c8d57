package broker

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/rabbitdelay/rabbitdelay/integration/guard"
	"github.com/rabbitdelay/rabbitdelay/integration/loopback"
)

// debianScripts is the directory with the scripts of Debian's package. The scripts in the path are wrappers that switch
// to the user rabbitmq and its home directory, which contains the data of the system's broker.
const debianScripts = "/usr/lib/rabbitmq/bin"

// node is a broker of an installed rabbitmq-server that uses no files outside its directory. It has its own epmd,
// because an epmd that a node starts as a daemon would keep running forever.
type node struct {
	guard   *guard.Guard
	name    string
	scripts string // directory of rabbitmq-server and rabbitmqctl
	epmd    string // path of the program
	dir     string
	env     []string
	ports   nodePorts
	hasty   Preload // empty if the node syncs its data to the disk
	cookie  string
	beside  bool // it uses the epmd of another node

	mu        sync.Mutex
	clock     Preload        // empty if it uses the machine's clock
	broker    *guard.Process // nil while it does not run
	portIndex *guard.Process // epmd; nil while it does not run
}

type nodePorts struct{ amqp, management, distribution, epmd int }

// scriptsDir returns the directory with the real scripts of an installed rabbitmq-server and its version. The version
// is "" if it is unknown.
func scriptsDir() (dir, version string, err error) {
	script := filepath.Join(debianScripts, "rabbitmq-server")
	if _, err := os.Stat(script); err != nil {
		script, err = exec.LookPath("rabbitmq-server")
		if err != nil {
			return "", "", errors.New("rabbitmq-server is not installed")
		}
	}
	script, err = filepath.EvalSymlinks(script)
	if err != nil {
		return "", "", err
	}
	dir = filepath.Dir(script)
	if _, err := os.Stat(filepath.Join(dir, "rabbitmq-env")); err != nil {
		return "", "", fmt.Errorf("%s is not RabbitMQ's script, because its directory does not contain rabbitmq-env", script)
	}
	if parts := installedVersion.FindStringSubmatch(script); parts != nil {
		version = parts[1]
	}
	return dir, version, nil
}

var installedVersion = regexp.MustCompile(`rabbitmq_server-(\d+\.\d+\.\d+)`)

func newNode(g *guard.Guard, o Options) (server, addresses, string, error) {
	fail := func(err error) (server, addresses, string, error) { return nil, addresses{}, "", err }
	scripts, version, err := scriptsDir()
	if err != nil {
		return fail(err)
	}
	if o.Version != "" && !matches(version, o.Version) {
		return fail(fmt.Errorf("got the installed RabbitMQ %s, want %s", version, o.Version))
	}
	epmd, err := exec.LookPath("epmd")
	if err != nil {
		return fail(errors.New("PATH does not contain epmd, a program of Erlang"))
	}
	ports, err := loopback.Ports(4)
	if err != nil {
		return fail(err)
	}
	ports[0] = cmp.Or(o.Port, ports[0])
	dir, err := os.MkdirTemp(o.Dir, "rabbitdelay-broker-")
	if err != nil {
		return fail(err)
	}
	if err := g.Directory(dir); err != nil {
		return fail(errors.Join(err, os.RemoveAll(dir)))
	}
	n := &node{
		guard:   g,
		name:    "rabbitdelay@localhost",
		cookie:  rand.Text(),
		scripts: scripts,
		epmd:    epmd,
		dir:     dir,
		ports:   nodePorts{amqp: ports[0], management: ports[1], distribution: ports[2], epmd: ports[3]},
	}
	if o.Beside != nil {
		first, ok := o.Beside.server.(*node)
		if !ok {
			return fail(errors.New("the existing node is not a private node"))
		}
		n.name, n.cookie, n.beside, n.ports.epmd = fmt.Sprintf("rabbitdelay%d@localhost", ports[0]), first.cookie, true, first.ports.epmd
	}
	if !o.Durable {
		n.hasty = Hasty()
	}
	n.env = n.environment(filepath.Dir(scripts), cmp.Or(o.Data, filepath.Join(dir, "data")))
	if err := errors.Join(n.configure(o, version), n.setClock(o.Clock)); err != nil {
		return fail(errors.Join(err, os.RemoveAll(dir)))
	}
	where := addresses{amqp: loopback.Address(n.ports.amqp)}
	if o.Management {
		where.management = loopback.Address(n.ports.management)
	}
	return n, where, "a private node of the rabbitmq-server that is installed", nil
}

// environment returns the environment of the node. It omits the settings of the system's broker, so that the node does
// not read or write any of that broker's files.
func (n *node) environment(home, data string) []string {
	var env []string
	for _, variable := range os.Environ() {
		name, _, _ := strings.Cut(variable, "=")
		if strings.HasPrefix(name, "RABBITMQ_") || strings.HasPrefix(name, "ERL_") || name == "HOME" || name == "NOTIFY_SOCKET" {
			continue
		}
		env = append(env, variable)
	}
	in := func(name string) string { return filepath.Join(n.dir, name) }
	return append(env,
		"HOME="+n.dir, // the directory with the Erlang cookie
		"RABBITMQ_NODENAME="+n.name,
		"RABBITMQ_DIST_PORT="+strconv.Itoa(n.ports.distribution),
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-kernel inet_dist_use_interface {127,0,0,1}",
		"ERL_EPMD_PORT="+strconv.Itoa(n.ports.epmd),
		"ERL_EPMD_ADDRESS="+loopback.Host,
		"ERL_INETRC="+in("inetrc"),
		"ERL_CRASH_DUMP_SECONDS=0",
		"RABBITMQ_BASE="+n.dir,
		"RABBITMQ_MNESIA_BASE="+data,
		"RABBITMQ_LOG_BASE="+in("log"),
		"RABBITMQ_CONF_ENV_FILE="+in("rabbitmq-env.conf"),
		"RABBITMQ_CONFIG_FILE="+in("rabbitmq.conf"),
		"RABBITMQ_CONFIG_FILES="+in("conf.d"),
		"RABBITMQ_ADVANCED_CONFIG_FILE="+in("advanced.config"),
		"RABBITMQ_ENABLED_PLUGINS_FILE="+in("enabled_plugins"),
		"RABBITMQ_PLUGINS_DIR="+filepath.Join(home, "plugins")+string(os.PathListSeparator)+in("plugins"),
		"RABBITMQ_PID_FILE="+in("pid"),
	)
}

// configure writes the node's configuration files.
func (n *node) configure(o Options, version string) error {
	config := fmt.Sprintf("listeners.tcp.default = %s\n", loopback.Address(n.ports.amqp))
	// Log to standard output only. It already goes to a file, which also contains the output before the logger starts.
	config += "log.console = true\nlog.console.level = info\nlog.file = false\n"
	if o.Management {
		config += fmt.Sprintf("management.tcp.ip = %s\nmanagement.tcp.port = %d\n", loopback.Host, n.ports.management)
	}
	config += strings.TrimRight(o.Config, "\n") + "\n"
	files := map[string]string{
		"rabbitmq.conf":     config,
		"rabbitmq-env.conf": "",
		"enabled_plugins":   enabledPlugins(o),
		// Erlang must resolve localhost even without /etc/hosts.
		"inetrc": "{host, {127,0,0,1}, [\"localhost\"]}.\n{lookup, [file, native]}.\n",
	}
	if o.Advanced != "" {
		files["advanced.config"] = o.Advanced
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(n.dir, name), []byte(content), 0o600); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(n.dir, ".erlang.cookie"), []byte(n.cookie), 0o400); err != nil {
		return err
	}
	for _, name := range []string{"conf.d", "data", "log", "plugins"} {
		if err := os.Mkdir(filepath.Join(n.dir, name), 0o700); err != nil {
			return err
		}
	}
	if !o.Plugin {
		return nil
	}
	path, reason := PluginAvailable(version)
	if path == "" {
		return errors.New(reason)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(n.dir, "plugins", filepath.Base(path)), content, 0o600)
}

func (n *node) logFile() string { return filepath.Join(n.dir, "log", "output") }

func (n *node) start(context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.broker != nil {
		return errors.New("the node is already running")
	}
	if n.portIndex == nil && !n.beside {
		p, err := n.run(nil, n.epmd, "-port", strconv.Itoa(n.ports.epmd), "-address", loopback.Host)
		if err != nil {
			return err
		}
		n.portIndex = p
	}
	p, err := n.run(n.hasty.With(n.clock).variables(), filepath.Join(n.scripts, "rabbitmq-server"))
	if err != nil {
		return err
	}
	n.broker = p
	return nil
}

// run starts a program under the guard and appends its output to the node's log. The parameter more adds to the node's
// environment.
func (n *node) run(more []string, path string, args ...string) (*guard.Process, error) {
	output, err := os.OpenFile(n.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer output.Close()
	cmd := exec.Command(path, args...)
	cmd.Env, cmd.Dir = slices.Concat(n.env, more), n.dir
	cmd.Stdout, cmd.Stderr = output, output
	p, err := n.guard.Start(cmd)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return p, nil
}

var errNotRunning = errors.New("the node is not running")

func (n *node) stop(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.broker == nil {
		return nil
	}
	err := n.broker.Stop(ctx, syscall.SIGTERM)
	forgetClock(n.broker.ID())
	n.broker = nil
	return err
}

func (n *node) kill(context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.broker == nil {
		return nil
	}
	err := n.broker.Kill()
	forgetClock(n.broker.ID())
	n.broker = nil
	return err
}

func (n *node) pause(context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.broker == nil {
		return errNotRunning
	}
	return n.broker.Suspend()
}

func (n *node) resume(context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.broker == nil {
		return errNotRunning
	}
	return n.broker.Continue()
}

// remove kills the node, because its data is no longer needed.
func (n *node) remove(ctx context.Context) error {
	err := n.kill(ctx)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.portIndex != nil {
		err = errors.Join(err, n.portIndex.Kill())
		n.portIndex = nil
	}
	return errors.Join(err, os.RemoveAll(n.dir))
}

func (n *node) ctl(ctx context.Context, args []string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(n.scripts, "rabbitmqctl"), args...)
	cmd.Env, cmd.Dir = n.env, n.dir
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%w: %s", err, tail(stderr.String()))
	}
	return stdout.String(), nil
}

func (n *node) ended(context.Context) bool {
	n.mu.Lock()
	p := n.broker
	n.mu.Unlock()
	if p == nil {
		return true
	}
	select {
	case <-p.Ended():
		return true
	default:
		return false
	}
}

func (n *node) processID(context.Context) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.broker == nil {
		return 0, errNotRunning
	}
	return n.broker.ID(), nil
}

func (n *node) log(context.Context) string {
	content, err := os.ReadFile(n.logFile())
	if err != nil {
		return fmt.Sprintf("(no log: %v)", err)
	}
	return excerpt(string(content))
}

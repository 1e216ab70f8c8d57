package broker

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	dockercontainer "github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	tcexec "github.com/testcontainers/testcontainers-go/exec"
	tclog "github.com/testcontainers/testcontainers-go/log"

	"github.com/rabbitdelay/rabbitdelay/integration/guard"
	"github.com/rabbitdelay/rabbitdelay/integration/loopback"
)

const (
	amqpPort       = "5672/tcp"
	managementPort = "15672/tcp"
)

// addresses holds the addresses of a broker, as host:port.
type addresses struct {
	amqp       string
	management string // "" without the management plugin
}

// container is a broker in a container. It keeps its ports and its data across a stop and a start, because this package
// chooses the ports instead of Docker.
type container struct {
	provider *testcontainers.DockerProvider
	docker   client.APIClient
	request  testcontainers.GenericContainerRequest

	mu      sync.Mutex
	running testcontainers.Container // nil before the first start
}

var prepareOnce sync.Once

// prepareTestcontainers sets the environment variables that testcontainers reads, unless the user has set them.
func prepareTestcontainers() {
	prepareOnce.Do(func() {
		set := func(name, value string) {
			if _, given := os.LookupEnv(name); !given {
				_ = os.Setenv(name, value)
			}
		}
		// Testcontainers' reaper needs another image, which a machine without access to a registry does not have. The
		// guard does the same with the docker command. Only without that command is the reaper necessary.
		if _, err := exec.LookPath("docker"); err == nil {
			set("TESTCONTAINERS_RYUK_DISABLED", "true")
		}
		// Ports are published on the loopback interface. Inside a container, testcontainers would otherwise use the
		// gateway as the host.
		set("TESTCONTAINERS_HOST_OVERRIDE", loopback.Host)
		tclog.SetDefault(tclog.NewNoopLogger())
	})
}

// newDocker returns a provider if Docker answers.
func newDocker(ctx context.Context) (*testcontainers.DockerProvider, error) {
	prepareTestcontainers()
	provider, err := newProvider()
	if err != nil {
		return nil, fmt.Errorf("docker does not answer: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, dockerAnswers)
	defer cancel()
	if _, err := provider.Client().Ping(ctx, client.PingOptions{}); err != nil {
		return nil, errors.Join(fmt.Errorf("docker does not answer: %w", err), provider.Close())
	}
	return provider, nil
}

// newProvider returns a testcontainers provider. It returns an error if Docker is missing, where testcontainers panics.
func newProvider() (provider *testcontainers.DockerProvider, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
		}
	}()
	return testcontainers.NewDockerProvider(testcontainers.WithLogger(tclog.NewNoopLogger()))
}

func newContainer(ctx context.Context, g *guard.Guard, o Options) (_ server, where addresses, why string, err error) {
	provider, err := newDocker(ctx)
	if err != nil {
		return nil, addresses{}, "", err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, provider.Close())
		}
	}()
	chosen, reason, err := chooseImage(ctx, provider.Client(), o.Version)
	if err != nil {
		return nil, addresses{}, "", err
	}
	files, err := containerFiles(o, chosen)
	if err != nil {
		return nil, addresses{}, "", err
	}
	host, err := provider.DaemonHost(ctx)
	if err != nil {
		return nil, addresses{}, "", err
	}
	// A remote daemon must publish on all its addresses to be reachable from here.
	bind := netip.MustParseAddr("0.0.0.0")
	if host == loopback.Host || host == "localhost" {
		host, bind = loopback.Host, netip.MustParseAddr(loopback.Host)
	}
	ports, err := loopback.Ports(2)
	if err != nil {
		return nil, addresses{}, "", err
	}
	ports[0] = cmp.Or(o.Port, ports[0])
	where.amqp = host + ":" + strconv.Itoa(ports[0])
	exposed := []string{amqpPort}
	published := network.PortMap{network.MustParsePort(amqpPort): {{HostIP: bind, HostPort: strconv.Itoa(ports[0])}}}
	if o.Management {
		where.management = host + ":" + strconv.Itoa(ports[1])
		exposed = append(exposed, managementPort)
		published[network.MustParsePort(managementPort)] = []network.PortBinding{{HostIP: bind, HostPort: strconv.Itoa(ports[1])}}
	}

	programs := programVolumes(ctx, provider.Client(), chosen)
	name := "rabbitdelay-" + strconv.Itoa(os.Getpid()) + "-" + strings.ToLower(rand.Text()[:8])
	if err := g.Container(name); err != nil {
		return nil, addresses{}, "", err
	}
	c := &container{provider: provider, docker: provider.Client()}
	c.request = testcontainers.GenericContainerRequest{
		ContainerRequest: testcontainers.ContainerRequest{
			Image:        chosen.name,
			Name:         name,
			Labels:       map[string]string{"rabbitdelay": "broker"},
			ExposedPorts: exposed,
			Files:        files,
			// The node's name must not change with the container's name, because it is part of the data directory's
			// name.
			Env: map[string]string{"RABBITMQ_NODENAME": "rabbit@localhost"},
			HostConfigModifier: func(h *dockercontainer.HostConfig) {
				h.PortBindings = published
				h.Binds = programs
				if o.Data != "" {
					h.Binds = append(h.Binds, o.Data+":/var/lib/rabbitmq")
				}
			},
		},
		Logger: tclog.NewNoopLogger(),
	}
	return c, where, fmt.Sprintf("in a container of %s (%s)", chosen.name, reason), nil
}

// containerFiles returns the files to copy into the container before it starts.
func containerFiles(o Options, chosen image) ([]testcontainers.ContainerFile, error) {
	files := []testcontainers.ContainerFile{{
		Reader:            strings.NewReader(enabledPlugins(o)),
		ContainerFilePath: "/etc/rabbitmq/enabled_plugins",
		FileMode:          0o644,
	}}
	if o.Config != "" {
		files = append(files, testcontainers.ContainerFile{
			Reader:            strings.NewReader(strings.TrimRight(o.Config, "\n") + "\n"),
			ContainerFilePath: "/etc/rabbitmq/conf.d/90-rabbitdelay.conf",
			FileMode:          0o644,
		})
	}
	if o.Advanced != "" {
		files = append(files, testcontainers.ContainerFile{
			Reader:            strings.NewReader(o.Advanced),
			ContainerFilePath: "/etc/rabbitmq/advanced.config",
			FileMode:          0o644,
		})
	}
	if !o.Durable {
		files = append(files, Hasty().ContainerFiles()...)
	}
	if o.Plugin {
		path, reason := PluginAvailable(cmp.Or(o.Version, line(chosen.version)))
		if path == "" {
			return nil, errors.New(reason)
		}
		files = append(files, testcontainers.ContainerFile{
			HostFilePath:      path,
			ContainerFilePath: "/plugins/" + filepath.Base(path),
			FileMode:          0o644,
		})
	}
	return files, nil
}

func enabledPlugins(o Options) string {
	var names []string
	if o.Management {
		names = append(names, "rabbitmq_management")
	}
	if o.Plugin {
		names = append(names, pluginName)
	}
	return "[" + strings.Join(names, ",") + "].\n"
}

func (c *container) start(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running != nil {
		_, err := c.docker.ContainerStart(ctx, c.running.GetContainerID(), client.ContainerStartOptions{})
		return err
	}
	started, err := c.provider.CreateContainer(ctx, c.request.ContainerRequest)
	if err != nil {
		return err
	}
	c.running = started
	return started.Start(ctx)
}

func (c *container) id() (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running == nil {
		return "", errors.New("the container was not created")
	}
	return c.running.GetContainerID(), nil
}

func (c *container) stop(ctx context.Context) error {
	id, err := c.id()
	if err == nil {
		_, err = c.docker.ContainerStop(ctx, id, client.ContainerStopOptions{})
	}
	return err
}

func (c *container) kill(ctx context.Context) error {
	id, err := c.id()
	if err == nil {
		_, err = c.docker.ContainerKill(ctx, id, client.ContainerKillOptions{Signal: "KILL"})
	}
	if err != nil {
		return err
	}
	// The signal is asynchronous. Without waiting, start could find the container still running.
	wait := c.docker.ContainerWait(ctx, id, client.ContainerWaitOptions{Condition: dockercontainer.WaitConditionNotRunning})
	select {
	case err := <-wait.Error:
		return err
	case <-wait.Result:
		return nil
	}
}

func (c *container) pause(ctx context.Context) error {
	id, err := c.id()
	if err == nil {
		_, err = c.docker.ContainerPause(ctx, id, client.ContainerPauseOptions{})
	}
	return err
}

func (c *container) resume(ctx context.Context) error {
	id, err := c.id()
	if err == nil {
		_, err = c.docker.ContainerUnpause(ctx, id, client.ContainerUnpauseOptions{})
	}
	return err
}

// remove removes the container by name instead of by ID, because the creation may have failed after Docker had created
// the container.
func (c *container) remove(ctx context.Context) error {
	_, err := c.docker.ContainerRemove(ctx, c.request.Name, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("container %s: %w", c.request.Name, err)
	}
	return c.provider.Close()
}

func (c *container) ctl(ctx context.Context, args []string) (string, error) {
	c.mu.Lock()
	running := c.running
	c.mu.Unlock()
	if running == nil {
		return "", errors.New("the container was not created")
	}
	code, reader, err := running.Exec(ctx, append([]string{"rabbitmqctl"}, args...), tcexec.Multiplexed())
	if err != nil {
		return "", err
	}
	out, err := io.ReadAll(reader)
	if err != nil {
		return "", err
	}
	if code != 0 {
		return string(out), fmt.Errorf("exit status %d: %s", code, tail(string(out)))
	}
	return string(out), nil
}

func (c *container) ended(ctx context.Context) bool {
	id, err := c.id()
	if err != nil {
		return true
	}
	inspected, err := c.docker.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
	return err == nil && inspected.Container.State != nil && !inspected.Container.State.Running
}

func (c *container) processID(ctx context.Context) (int, error) {
	id, err := c.id()
	if err != nil {
		return 0, err
	}
	inspected, err := c.docker.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
	if err != nil {
		return 0, err
	}
	if inspected.Container.State == nil || !inspected.Container.State.Running {
		return 0, errNotRunning
	}
	return inspected.Container.State.Pid, nil
}

func (c *container) log(ctx context.Context) string {
	c.mu.Lock()
	running := c.running
	c.mu.Unlock()
	if running == nil {
		return ""
	}
	reader, err := running.Logs(ctx)
	if err != nil {
		return fmt.Sprintf("(no log: %v)", err)
	}
	defer reader.Close()
	text, _ := io.ReadAll(reader)
	return excerpt(string(text))
}

package tasks_test

import (
	"context"
	"database/sql"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/integration/broker"
	"github.com/rabbitdelay/rabbitdelay/integration/database"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
)

// deployment is the part of docs/kubernetes/rabbitdelay.yaml that must agree with the programs.
type deployment struct {
	Kind     string
	Metadata struct{ Name string }
	Spec     struct {
		Strategy struct {
			RollingUpdate struct {
				MaxUnavailable int `yaml:"maxUnavailable"`
				MaxSurge       int `yaml:"maxSurge"`
			} `yaml:"rollingUpdate"`
		}
		Template struct {
			Spec struct {
				Grace      int `yaml:"terminationGracePeriodSeconds"`
				Containers []struct {
					Args           []string
					LivenessProbe  httpProbe `yaml:"livenessProbe"`
					ReadinessProbe httpProbe `yaml:"readinessProbe"`
				}
			}
		}
	}
}

type httpProbe struct {
	Get struct{ Path string } `yaml:"httpGet"`
}

func documentedDeployments(t *testing.T) map[string]deployment {
	t.Helper()
	f, err := os.Open("../../docs/kubernetes/rabbitdelay.yaml")
	suite.MustSucceed(t, err)
	defer func() { _ = f.Close() }()
	out := map[string]deployment{}
	for d := yaml.NewDecoder(f); ; {
		var x deployment
		if d.Decode(&x) != nil {
			return out
		}
		if x.Kind == "Deployment" {
			out[x.Metadata.Name] = x
		}
	}
}

// The documented manifests allow the programs the time that they need to stop.
func TestKubernetesManifests(t *testing.T) {
	t.Parallel()
	list := documentedDeployments(t)
	for name, least := range map[string]time.Duration{
		"rabbitdelay-relay": schedule.Config{}.WithDefaults().PublishTimeout + 15*time.Second,
		"orders":            30 * time.Second,
	} {
		d, ok := list[name]
		if grace := time.Duration(d.Spec.Template.Spec.Grace) * time.Second; !ok || grace <= least {
			t.Errorf("%s: terminationGracePeriodSeconds is %v, want more than %v", name, grace, least)
		}
		if u := d.Spec.Strategy.RollingUpdate; u.MaxUnavailable != 0 || u.MaxSurge != 1 {
			t.Errorf("%s: got %+v, want MaxUnavailable = 0 and MaxSurge = 1", name, u)
		}
	}
}

// relayContainer is a relay in a container on the host's network.
type relayContainer struct {
	name  string
	probe string
}

// relayImage builds the container image of the command.
func relayImage(t *testing.T) string {
	t.Helper()
	if err := exec.CommandContext(t.Context(), "docker", "version").Run(); err != nil {
		t.Skipf("skipped: it needs Docker: %v", err)
	}
	tag := fmt.Sprintf("rabbitdelay:test-%d", os.Getpid())
	build := exec.CommandContext(t.Context(), "make", "-C", "../..", "image", "IMAGE="+tag)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("make image: %v\n%s", err, out)
	}
	t.Cleanup(func() {
		_ = exec.CommandContext(context.WithoutCancel(t.Context()), "docker", "image", "rm", "--force", tag).Run()
	})
	return tag
}

// start runs a relay with the documented arguments, and waits until it is ready.
func (d deployment) start(t *testing.T, image, name, brokerURL, databaseURL string) relayContainer {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	suite.MustSucceed(t, err)
	r := relayContainer{name, l.Addr().String()}
	suite.MustSucceed(t, l.Close())
	settings := filepath.Join(t.TempDir(), "rabbitdelay.yaml")
	suite.MustSucceed(t, os.WriteFile(settings, []byte("delay: {prefix: delay}\n"), 0o644))
	main := d.Spec.Template.Spec.Containers[0]
	args := append([]string{
		"run", "--detach", "--network", "host", "--name", name, "--read-only", "--cap-drop", "ALL",
		"--volume", filepath.Dir(settings) + ":/etc/rabbitdelay:ro", "--env", "AMQP_URL=" + brokerURL, "--env", "RABBITDELAY_DATABASE_URL=" + databaseURL,
		"--env", "RABBITDELAY_SERVE_LISTEN=127.0.0.1:0", image, // any free port, because several relays share the host's network
	}, main.Args...)
	for i, a := range args {
		if a == ":8087" {
			args[i] = r.probe
		}
	}
	suite.Docker(t, args...)
	t.Cleanup(func() {
		_ = exec.CommandContext(context.WithoutCancel(t.Context()), "docker", "rm", "--force", "--volumes", name).Run()
	})
	suite.Eventually(t, name+" is ready", func() bool { return r.asks(t, main.ReadinessProbe) == http.StatusOK })
	if code := r.asks(t, main.LivenessProbe); code != http.StatusOK {
		t.Errorf("%s: the liveness probe returned %d, want 200", name, code)
	}
	return r
}

func (r relayContainer) asks(t *testing.T, p httpProbe) int {
	t.Helper()
	client := http.Client{Timeout: 5 * time.Second}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+r.probe+p.Get.Path, http.NoBody)
	suite.MustSucceed(t, err)
	resp, err := client.Do(req)
	if err != nil {
		return 0
	}
	defer func() { _ = resp.Body.Close() }()
	return resp.StatusCode
}

// stop stops the relay as Kubernetes does, and expects it to exit within the grace period.
func (r relayContainer) stop(t *testing.T, grace int) {
	t.Helper()
	suite.Docker(t, "stop", "--time", fmt.Sprint(grace), r.name)
	log, err := exec.CommandContext(t.Context(), "docker", "logs", r.name).CombinedOutput()
	suite.MustSucceed(t, err)
	if code := suite.Docker(t, "inspect", "--format", "{{.State.ExitCode}}", r.name); code != "0" || !strings.Contains(string(log), "stopping") {
		t.Errorf("%s exited with code %s, want 0 and a log containing \"stopping\":\n%s", r.name, code, log)
	}
	if strings.Contains(string(log), "guest:guest") {
		t.Errorf("the log contains the password, want it redacted:\n%s", log)
	}
}

// While tasks are scheduled and handled, relays and consumers are replaced one after another, and each task has its
// effect exactly once.
func TestRollingUpdate(t *testing.T) {
	t.Parallel()
	image := relayImage(t)
	relay := documentedDeployments(t)["rabbitdelay-relay"]
	at := broker.Shared(t, broker.Options{}).URL()
	db := openServer(t, idempotency.PostgreSQL, database.PostgreSQL)
	s := newStore(t, db, nil, schedule.Config{})
	db.mustExec(t, "CREATE TABLE effects (id text NOT NULL)")
	queue := suite.NewQueue(t)

	// A separate client for each consumer acts like a separate process.
	consume := func() (stop func()) {
		client := suite.OpenClient(t, amqpx.Config{URL: at})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		started := make(chan struct{})
		go func() {
			close(started)
			ended <- client.Consume(ctx, queue, schedule.Handler(db.DB, func(ctx context.Context, tx *sql.Tx, d *amqpx.Delivery) error {
				_, err := tx.ExecContext(ctx, "INSERT INTO effects (id) VALUES ($1)", d.ID)
				return err
			}))
		}()
		<-started
		return sync.OnceFunc(func() {
			cancel()
			if err := <-ended; err != nil {
				t.Errorf("Consume returned %v, want nil", err)
			}
		})
	}
	name := func(i int) string { return fmt.Sprintf("rabbitdelay-relay-%d-%d", os.Getpid(), i) }
	url := cliURL(t, db)
	relays := []relayContainer{relay.start(t, image, name(0), at, url), relay.start(t, image, name(1), at, url)}
	consumers := []func(){consume(), consume()}

	producing, enough := context.WithCancel(t.Context())
	produced := make(chan int, 1)
	go func() {
		n := 0
		for ; producing.Err() == nil; n++ {
			if err := s.Schedule(t.Context(), schedule.NoTx, schedule.Task{
				ID: fmt.Sprintf("task-%d", n), Queue: queue, DeliverAt: time.Now().Add(time.Second),
			}); err != nil {
				t.Error(err)
				break
			}
			<-time.After(10 * time.Millisecond)
		}
		produced <- n
	}()
	for i := range relays {
		next := relay.start(t, image, name(2+i), at, url)
		relays[i].stop(t, relay.Spec.Template.Spec.Grace)
		relays[i] = next
		more := consume()
		consumers[i]()
		consumers[i] = more
	}
	enough()
	n := <-produced
	suite.Eventually(t, "all tasks are done", func() bool {
		return db.queryInt(t, "SELECT COUNT(*) FROM rabbitdelay_tasks WHERE status = 'done'") == int64(n)
	})
	if effects := db.queryInt(t, "SELECT COUNT(*) FROM effects"); effects != int64(n) {
		t.Errorf("%d effects, want %d", effects, n)
	}
	if tasks := db.queryInt(t, "SELECT COUNT(DISTINCT id) FROM effects"); tasks != int64(n) {
		t.Errorf("%d tasks had an effect, want %d", tasks, n)
	}
	for i := range relays {
		consumers[i]()
		relays[i].stop(t, relay.Spec.Template.Spec.Grace)
	}
}

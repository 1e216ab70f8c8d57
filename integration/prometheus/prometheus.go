// Package prometheus starts a private Prometheus server and queries it.
package prometheus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/rabbitdelay/rabbitdelay/integration/guard"
	"github.com/rabbitdelay/rabbitdelay/integration/loopback"
)

// ErrNotInstalled is returned if Prometheus is not installed.
var ErrNotInstalled = errors.New("prometheus: not installed; install the package prometheus (`make setup` does)")

// Server is a running Prometheus server.
type Server struct {
	url     string
	dir     string
	guard   *guard.Guard
	process *guard.Process
	client  http.Client
}

const (
	startup = 3 * time.Minute
	poll    = 50 * time.Millisecond
)

// Start starts a server that scrapes the targets and evaluates a rule file every second. Each target is a host:port
// with metrics at /metrics. Call Close to stop the server.
func Start(ctx context.Context, rules string, targets ...string) (_ *Server, err error) {
	program, err := exec.LookPath("prometheus")
	if err != nil {
		return nil, ErrNotInstalled
	}
	s := &Server{client: http.Client{Timeout: 10 * time.Second}}
	if s.guard, err = guard.New(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("prometheus: %w; the end of its log:\n%s", err, s.log()), s.Close())
		}
	}()
	if s.dir, err = os.MkdirTemp("", "rabbitdelay-prometheus-"); err != nil {
		return nil, err
	}
	if err := s.guard.Directory(s.dir); err != nil {
		return nil, err
	}
	if rules, err = filepath.Abs(rules); err != nil {
		return nil, err
	}
	config := fmt.Sprintf(`global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [%q]
scrape_configs: [{job_name: test, static_configs: [{targets: ["%s"]}]}]
`, rules, strings.Join(targets, `", "`))
	if err := os.WriteFile(filepath.Join(s.dir, "prometheus.yml"), []byte(config), 0o600); err != nil {
		return nil, err
	}
	ports, err := loopback.Ports(1)
	if err != nil {
		return nil, err
	}
	address := loopback.Address(ports[0])
	s.url = "http://" + address
	err = s.run(ctx, program, "--config.file=prometheus.yml", "--storage.tsdb.path=data", "--web.listen-address="+address, "--log.level=warn")
	return s, err
}

func (s *Server) run(ctx context.Context, command ...string) error {
	output, err := os.Create(filepath.Join(s.dir, "log"))
	if err != nil {
		return err
	}
	defer output.Close()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.dir, output, output
	if s.process, err = s.guard.Start(cmd); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startup)
	defer cancel()
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	for {
		answer, err := s.get(ctx, "/-/ready")
		if err == nil {
			return answer.Body.Close()
		}
		select {
		case <-s.process.Ended():
			return errors.New("the server exited")
		case <-ctx.Done():
			return fmt.Errorf("the server did not start: %w", err)
		case <-ticker.C:
		}
	}
}

// Close stops the server and removes its directory.
func (s *Server) Close() error {
	var err error
	if s.process != nil {
		ctx, cancel := context.WithTimeout(context.Background(), startup)
		defer cancel()
		err = s.process.Stop(ctx, syscall.SIGTERM)
	}
	if s.dir != "" {
		err = errors.Join(err, os.RemoveAll(s.dir))
	}
	return errors.Join(err, s.guard.Dismiss())
}

func (s *Server) log() string {
	const most = 4 << 10
	text, _ := os.ReadFile(filepath.Join(s.dir, "log")) // there may be none yet
	return strings.TrimSpace(string(text[max(0, len(text)-most):]))
}

func (s *Server) get(ctx context.Context, path string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	answer, err := s.client.Do(req)
	if err == nil && answer.StatusCode != http.StatusOK {
		_ = answer.Body.Close()
		return nil, fmt.Errorf("GET %s: status %s", path, answer.Status)
	}
	return answer, err
}

// Count returns how many series an instant query currently returns, without those whose value is not a number.
func (s *Server) Count(ctx context.Context, query string) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"/api/v1/query?query="+url.QueryEscape(query), http.NoBody)
	if err != nil {
		return 0, err
	}
	answer, err := s.client.Do(req)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	var body struct {
		Error string `json:"error"`
		Data  struct {
			Result []struct {
				Value []any `json:"value"`
			} `json:"result"`
		} `json:"data"`
	}
	if err := json.NewDecoder(answer.Body).Decode(&body); err != nil {
		return 0, err
	}
	if body.Error != "" {
		return 0, fmt.Errorf("prometheus: %s: %s", query, body.Error)
	}
	n := 0
	for _, r := range body.Data.Result {
		if len(r.Value) == 2 && r.Value[1] != "NaN" {
			n++
		}
	}
	return n, nil
}

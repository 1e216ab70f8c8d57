package serve

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console/auth"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/probe"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/status"
	"github.com/rabbitdelay/rabbitdelay/config"
	"github.com/rabbitdelay/rabbitdelay/internal/program"
	"github.com/rabbitdelay/rabbitdelay/internal/serveconf"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
	"github.com/rabbitdelay/rabbitdelay/internal/tlsfiles"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

const (
	maxHeader = 64 << 10
	goodbye   = 5 * time.Second // the time to finish work in progress when serve is stopped
)

type serveRun struct {
	*app.App

	probe   string
	noRelay bool
	relay   relayPart
}

// Command returns the serve command, which runs the relay, the console, the HTTP API and metrics.
func Command(a *app.App) *cobra.Command {
	r := &serveRun{App: a, relay: relayPart{App: a}}
	c := &cobra.Command{
		Use:   "serve",
		Short: "Run the relay, the console, the HTTP API and metrics",
		Long: `Send the tasks of a database to the broker, and serve a console, an HTTP API and
metrics. It runs until it is stopped. Without a database, it shows the broker's
messages and can requeue or discard dead letters, but there are no tasks.`,
		Example: `  rabbitdelay serve --db postgres://user:password@host/shop -f delays.yaml
  rabbitdelay serve -f delays.yaml --listen :8086 --users users.yaml
  RABBITDELAY_DATABASE_URL=sqlite:shop.db rabbitdelay serve --poll 200ms`,
		RunE: func(c *cobra.Command, _ []string) error { return r.run(c.Context()) },
	}
	f := c.Flags()
	app.DatabaseFlag(f, "; without a database, there are no tasks")
	program.Setting(f, "serve.listen", "listen", "listen on this `HOST:PORT`; default: serve.listen, or else "+serveconf.DefaultListen)
	program.Setting(f, "serve.users", "users", "`FILE` with users and tokens; default: serve.users")
	program.Setting(f, "serve.path_prefix", "path-prefix", "prefix of all paths behind a proxy, such as /rabbitdelay")
	f.StringVar(&r.probe, "probe", "", "serve /healthz, /readyz and /metrics on this `HOST:PORT` instead of --listen")
	f.BoolVar(&r.noRelay, "no-relay", false, "do not send tasks; for setups in which other processes send them")
	r.relay.register(f)
	return c
}

func (r *serveRun) load() (*config.Config, error) {
	r.LogBeginning()
	cfg, err := r.Load(map[string]string{"broker.connection_name": "rabbitdelay serve"}) // status shows this name
	if err != nil {
		return nil, err
	}
	if s := serveconf.Of(cfg); s.Users == "" && s.Proxy.UserHeader == "" && !s.Loopback() {
		return nil, fmt.Errorf("--listen: %s is reachable from other machines, so anyone there could change everything; give --users FILE (created by \"rabbitdelay users add\"), set serve.proxy if users log in at a reverse proxy, or listen on 127.0.0.1", s.Listen)
	}
	if cfg.Broker.URL == "" && len(cfg.Broker.URLs) == 0 {
		return nil, config.ErrNoBroker // waiting would not help
	}
	return cfg, nil
}

func (r *serveRun) run(ctx context.Context) (err error) {
	cfg, err := r.load()
	if err != nil {
		return err
	}
	r.relay.cfg = cfg
	settings := serveconf.Of(cfg)
	secure, err := serveTLS(settings.TLS, r.Logger())
	if err != nil {
		return err
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", settings.Listen)
	if err != nil {
		return fmt.Errorf("--listen: %w; expected an address of this machine that no other process uses, such as %s", err, serveconf.DefaultListen)
	}
	defer l.Close()
	if cfg.Database.URL != "" {
		store, err := r.database(ctx, cfg)
		if err != nil {
			return err
		}
		defer store.Close()
		r.relay.db, r.relay.relays = store.DB, !r.noRelay
	}
	if r.relay.metrics, err = probe.NewMetrics(); err != nil {
		return err
	}
	defer func() { _ = r.relay.metrics.Close(context.WithoutCancel(ctx)) }() // metrics are pulled, so closing has nothing to send and an error does not matter
	if err := r.relay.check(); err != nil {
		return err
	}
	p := probe.New(r.relay.metrics)
	p.Set(r.relay.health)
	c, err := r.console(cfg)
	if err != nil {
		return err
	}
	log := r.Logger()
	handler := http.Handler(c)
	if r.probe == "" {
		handler = besideConsole(p, c, settings.Users == "" && settings.Proxy.UserHeader == "")
	} else {
		at, err := p.Listen(ctx, r.probe)
		if err != nil {
			return err
		}
		defer p.Close()
		log.Info("serving probes", zap.Stringer("address", at))
	}
	server := probe.Server(handler)
	server.MaxHeaderBytes, server.TLSConfig, server.ErrorLog = maxHeader, secure, zap.NewStdLog(log.WithOptions(zap.IncreaseLevel(zap.ErrorLevel)))
	scheme := "http"
	if secure != nil {
		scheme = "https"
	}
	served := make(chan error, 1)
	go func() {
		if secure != nil {
			served <- server.ServeTLS(l, "", "")
		} else {
			served <- server.Serve(l)
		}
	}()
	log.Info("serving", zap.String("url", scheme+"://"+l.Addr().String()+settings.PathPrefix+"/"), zap.String("users", usersOf(settings)))
	return r.until(ctx, server, served, c, p)
}

// usersOf describes who may use the console, for the log.
func usersOf(s *serveconf.Settings) string {
	switch {
	case s.Proxy.UserHeader != "":
		return "users of the proxies at " + strings.Join(s.Proxy.Trusted, ", ")
	case s.Users != "":
		return s.Users
	}
	return "everybody on this machine"
}

// database opens the database without waiting for it to answer. A SQLite file must already exist, because otherwise
// serve would wait for a file that never appears.
func (r *serveRun) database(ctx context.Context, cfg *config.Config) (*app.Store, error) {
	store, err := r.OpenStore(cfg)
	if err != nil {
		return nil, err
	}
	if d, _ := config.Dialect(cfg.Database.URL); d == idempotency.SQLite {
		if err := app.CheckTasks(ctx, store.Store.Store); err != nil {
			store.Close()
			return nil, err
		}
	}
	return store, nil
}

// besideConsole serves the probe and the console. If there is no login, a request for metrics under a host name that is
// not a loopback name goes to the console, which rejects it.
func besideConsole(p *probe.Probe, c *console.Console, everybody bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		foreign := everybody && req.URL.Path == "/metrics" && !console.LoopbackHost(req.Host)
		if p.Answers(req) && !foreign {
			p.ServeHTTP(w, req)
			return
		}
		c.ServeHTTP(w, req)
	})
}

// serveTLS returns the TLS configuration, or nil for plain HTTP. Changed files take effect with the next connection.
func serveTLS(files serveconf.TLS, log *zap.Logger) (*tls.Config, error) {
	if files.Cert == "" {
		return nil, nil //nolint:nilnil // http
	}
	current, err := tlsfiles.Files{Cert: files.Cert, Key: files.Key}.Load(log)
	if bad, ok := errors.AsType[*tlsfiles.Error](err); ok {
		return nil, fmt.Errorf("serve.tls.%s: %w", strings.ToLower(bad.Field), err)
	}
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &current().Certificates[0], nil },
		MinVersion:     tls.VersionTLS12,
	}, nil
}

// until runs the relay until ctx is done or the server fails, and then stops everything.
func (r *serveRun) until(ctx context.Context, server *http.Server, served <-chan error, c *console.Console, p *probe.Probe) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		err := <-served
		cancel()
		ended <- err
	}()
	start := time.Now()
	stop := context.AfterFunc(ctx, func() {
		r.Logger().Info("stopping after the work in progress is finished")
		p.Set(func() error { return probe.ErrStopping })
	})
	defer stop()
	r.relay.connectAndRelay(ctx)
	<-ctx.Done()
	bye, done := context.WithTimeout(context.WithoutCancel(ctx), goodbye)
	defer done()
	closing := c.Close(bye) // also ends open event streams
	r.relay.close(ctx)      // close the client after the console, because jobs of the console use it
	if err := server.Shutdown(bye); err != nil {
		_ = server.Close() // clients that are still reading have had enough time
	}
	err := <-ended
	if errors.Is(err, http.ErrServerClosed) {
		err = nil
	}
	if closing != nil {
		r.Logger().Warn("a job did not finish in time; another process can continue it")
	}
	return errors.Join(err, r.relay.summary(time.Since(start)))
}

// relook is how long the desired topology of the broker is cached. The cache expires because the topology depends on
// whether the broker has the plugin.
const relook = 5 * time.Minute

// brokerSource returns the function with which the console inspects the broker.
func (r *serveRun) brokerSource(cfg *config.Config) func(ctx context.Context) (status.Source, error) {
	var mu sync.Mutex
	var known status.Source
	var at time.Time
	return func(ctx context.Context) (status.Source, error) {
		mu.Lock()
		defer mu.Unlock()
		if !at.IsZero() && time.Since(at) < relook {
			return known, nil
		}
		c, src := *cfg, status.Source{}
		if err := r.Examined(ctx, &c, &src.Want, &src.Broker, "rabbitdelay serve"); err != nil {
			return src, err
		}
		known, at = src, time.Now()
		return src, nil
	}
}

func (r *serveRun) console(cfg *config.Config) (*console.Console, error) {
	settings := serveconf.Of(cfg)
	proxy := settings.Proxy
	networks, err := proxy.Networks()
	if err != nil {
		return nil, err
	}
	log := r.Logger()
	out := console.Config{
		DB: r.relay.db, Client: r.relay.theClient, Problem: r.relay.health, Prefix: settings.PathPrefix, Users: settings.Users, Proxies: networks,
		KeepAudit: settings.KeepAudit, Discarded: settings.Discarded, Title: settings.Title, Color: settings.Color, TraceURL: settings.TraceURL, Version: r.Version, Logger: log,
		Broker: r.brokerSource(cfg),
		Previous: func(ctx context.Context) (topology.Topology, error) {
			s, err := cfg.Strategy(ctx, nil)
			if err != nil {
				return topology.Topology{}, err
			}
			return cfg.DescribePrevious(s)
		},
	}
	if proxy.UserHeader != "" {
		out.Identify = (&auth.Proxy{
			Trusted: networks, UserHeader: proxy.UserHeader, RoleHeader: proxy.RoleHeader, Operators: proxy.Operators, Viewers: proxy.Viewers, Logger: log,
		}).Identify
	}
	if r.relay.db != nil {
		if out.Store, err = taskview.New(r.relay.db, schedule.Config{Destination: cfg.Listed, Hooks: r.relay.metrics.Hooks(schedule.Hooks{}), Logger: log}); err != nil {
			return nil, err
		}
	}
	return console.New(out)
}

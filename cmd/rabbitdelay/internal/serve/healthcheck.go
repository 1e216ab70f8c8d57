package serve

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
	"github.com/rabbitdelay/rabbitdelay/internal/program"
	"github.com/rabbitdelay/rabbitdelay/internal/serveconf"
)

// healthTimeout is the timeout of a healthcheck. It is below Docker's default timeout of 30 s.
const healthTimeout = 10 * time.Second

// HealthCommand returns the healthcheck command, which asks a serve on the same machine whether it runs.
func HealthCommand(a *app.App) *cobra.Command {
	return &cobra.Command{
		Use:   "healthcheck [URL]",
		Short: "Check that serve is running here, for Docker's HEALTHCHECK",
		Long: `Exit with 0 if "rabbitdelay serve" on this machine answers /healthz with 200
within 10 s, and with 1 otherwise.`,
		Example: `  rabbitdelay healthcheck
  rabbitdelay healthcheck http://127.0.0.1:8087/readyz`,
		Args: program.AtMostOneArg,
		RunE: func(c *cobra.Command, args []string) error {
			var address string
			if len(args) == 1 {
				address = args[0]
			} else {
				cfg, err := a.Load(nil)
				if err != nil {
					return err
				}
				address = healthURL(serveconf.Of(cfg))
			}
			if err := healthy(c.Context(), address); err != nil {
				return err
			}
			return a.Show(map[string]bool{"ok": true}, "ok\n")
		},
	}
}

// healthURL returns the local address of /healthz of a serve with these settings.
func healthURL(s *serveconf.Settings) string {
	host, port, _ := net.SplitHostPort(cmp.Or(s.Listen, serveconf.DefaultListen))
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	u := url.URL{Scheme: "http", Host: net.JoinHostPort(host, port), Path: s.PathPrefix + "/healthz"}
	if s.TLS.Cert != "" {
		u.Scheme = "https"
	}
	return u.String()
}

func healthy(ctx context.Context, address string) error {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("%q; expected an address such as http://127.0.0.1:8086/healthz", address)
	}
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
	if err != nil {
		return err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} //nolint:gosec // it asks its own machine
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(res.Body, 1<<10))
		return fmt.Errorf("%s answered %s: %s", u.Redacted(), res.Status, strings.TrimSpace(string(body)))
	}
	return nil
}

package page

import (
	"flag"
	"net/http"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console/service"
)

var listen = flag.String("listen", "", "serve the pages with the fixtures at this address until the test is interrupted")

// TestListen serves the pages for viewing in a browser: go test -run TestListen -listen 127.0.0.1:8123. The paths
// /calm/ and /viewer/ show a broker without problems, and the pages as a viewer sees them.
func TestListen(t *testing.T) {
	if *listen == "" {
		t.Skip("skipped: set -listen ADDRESS to serve the pages")
	}
	mux := http.NewServeMux()
	for prefix, role := range map[string]service.Role{"/": service.RoleOperator, "/calm/": service.RoleOperator, "/viewer/": service.RoleViewer} {
		c := open(role)
		c.now, c.calm = time.Now(), prefix == "/calm/"
		c.pages.o.Now = time.Now
		mux.Handle(prefix, http.StripPrefix(prefix[:len(prefix)-1], http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Security-Policy",
				"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'")
			c.fake.mu.Lock()
			c.now = time.Now()
			c.fake.mu.Unlock()
			if r.URL.Path == "/login" {
				c.pages.Login(w, r, http.StatusOK, "")
				return
			}
			c.pages.ServeHTTP(w, r.WithContext(service.WithCaller(r.Context(), c.who)))
		})))
	}
	s := &http.Server{Addr: *listen, Handler: mux, ReadHeaderTimeout: time.Minute}
	t.Errorf("the server stopped: %v", s.ListenAndServe())
}

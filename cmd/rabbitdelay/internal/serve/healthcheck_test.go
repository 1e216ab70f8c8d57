package serve

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/internal/serveconf"
)

// If serve listens on all addresses, the health check uses the loopback address.
func TestHealthURL(t *testing.T) {
	for want, s := range map[string]serveconf.Settings{
		"http://127.0.0.1:8086/healthz":       {},
		"http://127.0.0.1:80/healthz":         {Listen: ":80"},
		"http://127.0.0.1:81/healthz":         {Listen: "0.0.0.0:81"},
		"http://127.0.0.1:82/delays/healthz":  {Listen: "[::]:82", PathPrefix: "/delays"},
		"https://10.0.0.1:8443/healthz":       {Listen: "10.0.0.1:8443", TLS: serveconf.TLS{Cert: "c", Key: "k"}},
		"http://localhost:8086/healthz":       {Listen: "localhost:8086"},
		"http://[::1]:8086/rabbit/me/healthz": {Listen: "[::1]:8086", PathPrefix: "/rabbit/me"},
	} {
		if got := healthURL(&s); got != want {
			t.Errorf("%+v: got %s, want %s", s, got, want)
		}
	}
}

func TestHealthy(t *testing.T) {
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/healthz" {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = w.Write([]byte(`{"ok":false,"problem":"starting"}`))
		}
	})
	plain, secure := httptest.NewServer(handler), httptest.NewTLSServer(handler)
	defer plain.Close()
	defer secure.Close()
	for address, want := range map[string]string{
		plain.URL + "/healthz":  "",
		secure.URL + "/healthz": "",
		plain.URL + "/readyz":   `503 Service Unavailable: {"ok":false,"problem":"starting"}`,
		"127.0.0.1:8086":        "expected an address such as",
		"http://127.0.0.1:1/":   "connection refused",
	} {
		err := healthy(t.Context(), address)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got error %v, want one containing %q, or none if empty", address, err, want)
		}
	}
}

package live

import (
	"net/http"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/live"
)

func init() { //nolint:gochecknoinits // rabbitdelay's other packages need the client, which only this package can read from a Management
	live.SetInternal(func(public any) *live.Management {
		if m, _ := public.(*Management); m != nil {
			return m.client
		}
		return nil
	})
}

// Management is a client of RabbitMQ's management API. It shows a whole virtual host: objects with all their arguments,
// bindings, message counts and policies. It is safe for concurrent use.
type Management struct{ client *live.Management }

// ManagementConfig contains the management API's address and the login.
type ManagementConfig struct {
	// URL is the API's address without a path, e.g. "http://127.0.0.1:15672". It may contain the user name and
	// password.
	URL string
	// URLs are the addresses of further nodes of the same cluster. The first request is sent to a random node, and
	// later ones to the same node for as long as it answers.
	URLs []string
	// Username and Password override those in the URL. If neither is set, both default to "guest". The user needs the
	// management tag, and the policymaker tag to read policies.
	Username, Password string
	Vhost              string            // the virtual host; empty means "/"
	Transport          http.RoundTripper // carries custom TLS settings; nil means the default
	Timeout            time.Duration     // bounds one inspection; 0 means 30 s
}

// NewManagement checks the configuration, and returns an error if an address is not a valid URL. It does not connect.
func NewManagement(cfg ManagementConfig) (*Management, error) {
	return live.NewPublic(live.ManagementConfig(cfg), func(client *live.Management) *Management { return &Management{client} })
}

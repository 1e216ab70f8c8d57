package layout_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/clitest"
)

// A slow management API takes seconds for each answer, so plan sends its requests together and none of them twice. The
// API in this test answers only when it has received requests for the cluster's name, the queues and the bindings.
func TestPlanAsksTogether(t *testing.T) {
	b := clitest.NewBroker(t, amqptest.Options{})
	var mu sync.Mutex
	var once sync.Once
	asked, all := map[string]int{}, make(chan struct{})
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		asked[r.URL.Path]++
		if asked["/api/overview"] > 0 && asked["/api/queues//"] > 0 && asked["/api/bindings//"] > 0 {
			once.Do(func() { close(all) })
		}
		mu.Unlock()
		select {
		case <-all:
		case <-r.Context().Done():
			return
		}
		body := "[]"
		if strings.HasPrefix(r.URL.Path, "/api/overview") {
			body = "{}"
		}
		_, _ = io.WriteString(w, body) // if this fails, the client's request fails too
	}))
	defer api.Close()
	file := filepath.Join(t.TempDir(), "delays.yaml")
	if err := os.WriteFile(file, []byte("broker: {management_url: '"+api.URL+"'}\ndelay: {bucket: {radices: [2], resolution: 1s}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := clitest.Expect(t, 2, "plan", "-f", file, "--url", b.URL)
	if !strings.Contains(r.Stdout, "(read by management API)") {
		t.Errorf("plan: got\n%s\nwant it to read the management API", r)
	}
	mu.Lock()
	defer mu.Unlock()
	for path, n := range asked {
		if n != 1 {
			t.Errorf("plan sent %d requests for %s, want 1", n, path)
		}
	}
}

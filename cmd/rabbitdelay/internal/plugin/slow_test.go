package plugin

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/internal/live"
)

// The requests for the parts of a status are concurrent, because a busy management API needs seconds for each of them.
func TestStatusAsksConcurrently(t *testing.T) {
	parts := map[string]*sync.Once{"exchanges": {}, "channels": {}, "nodes": {}}
	var all sync.WaitGroup
	all.Add(len(parts))
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for part, once := range parts {
			if strings.Contains(r.URL.Path, part) {
				once.Do(all.Done)
			}
		}
		asked := make(chan struct{})
		go func() { all.Wait(); close(asked) }()
		select {
		case <-asked:
		case <-r.Context().Done():
		}
		_, _ = io.WriteString(w, "[]")
	}))
	defer api.Close()
	m, err := live.NewManagement(live.ManagementConfig{URL: api.URL})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lookAtPlugin(t.Context(), m, "delay"); err != nil {
		t.Error(err)
	}
}

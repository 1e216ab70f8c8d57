package config

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
)

// Messages from each release since 0.1.0 can be read, because they may be on a broker during an upgrade. Each release
// adds its wire.json, which is never changed.
func TestMessagesOfEarlierReleases(t *testing.T) {
	files, err := filepath.Glob("testdata/*/wire.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("the directory has the files %v, error %v, want the wire.json of at least one release and no error", files, err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var old struct {
			Messages []struct {
				Queue   string
				Due     int64 `json:"due_ms"`
				Headers map[string]any
			}
		}
		if err := json.Unmarshal(data, &old); err != nil || len(old.Messages) < 5 {
			t.Fatalf("%s: got %d messages, error %v, want at least 5 and no error", file, len(old.Messages), err)
		}
		for _, m := range old.Messages {
			headers := amqp.Table{}
			for name, v := range m.Headers {
				if n, ok := v.(float64); ok {
					v = int64(n)
				}
				headers[name] = v
			}
			d := inspect.ReadDeadLetter(amqp.Delivery{MessageId: "m", Headers: headers}, m.Queue, "delay")
			if d.DueAt.UnixMilli() != m.Due {
				t.Errorf("%s: a message with the headers %v is due at %d ms, want %d ms", file, m.Headers, d.DueAt.UnixMilli(), m.Due)
			}
		}
	}
}

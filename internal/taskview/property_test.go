package taskview

import (
	"testing"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

// Every property can be set from a string in the format of its type, and the empty string resets it.
func TestProperties(t *testing.T) {
	texts := map[string]string{"string": "a", "uint8": "7", "duration": "1h30m"}
	for _, p := range Properties {
		var task schedule.Task
		want := texts[p.Type()]
		if err := p.Set(&task, want); err != nil || p.Of(task) != want {
			t.Errorf("%s after it was set: got %q, %v, want %q and no error", p.Key, p.Of(task), err, want)
		}
		if err := p.Set(&task, ""); err != nil || p.Of(task) != "" {
			t.Errorf(`%s after it was set to "": got %q, %v, want "" and no error`, p.Key, p.Of(task), err)
		}
		if err := p.Set(&task, "-1x"); (err != nil) != (p.Type() != "string") {
			t.Errorf("setting %s to -1x: got %v, want an error: %t", p.Key, err, p.Type() != "string")
		}
	}
}

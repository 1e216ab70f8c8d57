package inspect_test

import (
	"strings"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
)

// The error of Requeue names the missing permission: to read the queue, or to write to the exchange through which a
// message is sent.
func TestRequeueNamesTheMissingPermission(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		c.bury("q", 1)
		allow := m.Deny("", amqptest.PermissionWrite, "^amq.default$")
		r := c.requeue(inspect.RequeueOptions{Queue: "q.dead"})
		if len(r.Results) != 1 || !strings.HasPrefix(r.Results[0].Why, "this user is not allowed to write to exchange 'amq.default' (403); docs/permissions.md") {
			t.Errorf("Requeue without the write permission: got the results %+v, want one that names the exchange amq.default", r.Results)
		}
		allow()
		defer m.Deny("", amqptest.PermissionRead, "^q.dead$")()
		for _, discard := range []bool{false, true} {
			_, err := inspect.Requeue(t.Context(), c.Client, inspect.RequeueOptions{Queue: "q.dead", Discard: discard})
			want := map[bool]string{false: "requeue q.dead: ", true: "discard q.dead: "}[discard]
			if err == nil || !strings.HasPrefix(err.Error(), want) || !strings.Contains(err.Error(), "the user needs the permission to read the queue") {
				t.Errorf("Requeue without the read permission (Discard = %t): got %v, want an error that begins with %q and names the permission", discard, err, want)
			}
		}
	})
}

package suite

import (
	"context"
	"encoding/json"
	"net/http"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/integration/broker"
)

// layout is a virtual host with the default layout, and its definitions when it was new.
type layout struct {
	vhost string
	fresh definitions
}

// layouts holds the virtual hosts that no test is using.
var layouts = struct {
	sync.Mutex
	free map[*broker.Broker][]layout
}{free: map[*broker.Broker][]layout{}}

// OnPrepared is the same as OnVhosts, for a test whose clients have the default layout, which is already declared.
// Declaring and deleting its 283 queues costs a broker more than most tests do.
func OnPrepared(t *testing.T, test func(t *testing.T, v *Vhost)) {
	t.Helper()
	onVersions(t, Prepared, test)
}

// OnSomePrepared is the same as OnSomeVhosts, with the default layout as in OnPrepared.
func OnSomePrepared(t *testing.T, test func(t *testing.T, v *Vhost)) {
	t.Helper()
	onSomeVersions(t, Prepared, test)
}

// Prepared returns a virtual host that contains only the default layout, for the duration of the test. If the test
// leaves the layout unchanged, a later test reuses the virtual host.
func Prepared(t *testing.T, b *broker.Broker) *Vhost {
	t.Helper()
	for {
		l, known := takeLayout(b)
		v := newVhost(t, b, l.vhost)
		end := v.remove
		t.Cleanup(func() { end(t) })
		v.open(t)
		if !known {
			MustSucceed(t, v.declare(t.Context()))
			var err error
			l.fresh, err = v.definitions()
			MustSucceed(t, err)
		}
		messages, err := v.purge(l.fresh)
		MustSucceed(t, err)
		if messages == 0 { // otherwise, late messages of the previous test have arrived, and more may follow
			end = func(t *testing.T) { v.giveBack(t, l.fresh) }
			return v
		}
	}
}

// declare uses a client to declare the default layout.
func (v *Vhost) declare(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	c, err := amqpx.Open(ctx, FastReconnect(amqpx.Config{URL: v.URL}))
	if err != nil {
		return err
	}
	return c.Close(ctx)
}

// takeLayout takes a virtual host that no test is using, or returns a name for a new one.
func takeLayout(b *broker.Broker) (l layout, known bool) {
	layouts.Lock()
	defer layouts.Unlock()
	free := layouts.free[b]
	if len(free) == 0 {
		return layout{vhost: newVhostName()}, false
	}
	layouts.free[b] = free[1:]
	return free[0], true
}

// giveBack deletes what the test has created and keeps the virtual host for another test. It removes a virtual host
// that it cannot restore.
func (v *Vhost) giveBack(t *testing.T, fresh definitions) {
	if t.Failed() || v.Broker.Source() == broker.Environment || !v.tidy(fresh) {
		v.remove(t)
		return
	}
	layouts.Lock()
	defer layouts.Unlock()
	layouts.free[v.Broker] = append(layouts.free[v.Broker], layout{v.Name, fresh})
}

// tidy deletes what a test has created, and reports whether the virtual host is in its original state.
func (v *Vhost) tidy(fresh definitions) bool {
	now, err := v.definitions()
	if err != nil {
		return false
	}
	for _, kind := range []string{"queues", "exchanges", "policies"} {
		for _, name := range now.names(kind) {
			if !slices.Contains(fresh.names(kind), name) { // it may be deleted automatically in the meantime
				_, _ = v.Mgmt.Call(context.Background(), http.MethodDelete, v.Mgmt.InVhost(kind, name), nil, nil)
			}
		}
	}
	if _, err := v.purge(fresh); err != nil {
		return false
	}
	now, err = v.definitions()
	return err == nil && reflect.DeepEqual(now, fresh)
}

// purge purges the queues of a layout and returns how many ready messages they contained.
func (v *Vhost) purge(fresh definitions) (messages int, err error) {
	conn, err := amqp.Dial(v.URL)
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.CloseDeadline(time.Now().Add(10 * time.Second)) }()
	ch, err := conn.Channel()
	if err != nil {
		return 0, err
	}
	for _, name := range fresh.names("queues") {
		q, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
		if err != nil {
			return messages, err
		}
		if q.Messages > 0 {
			messages += q.Messages
			if _, err := ch.QueuePurge(name, false); err != nil {
				return messages, err
			}
		}
	}
	return messages, nil
}

// definitions is the management API's export of a virtual host: its objects by kind, as JSON.
type definitions map[string][]string

func (v *Vhost) definitions() (definitions, error) {
	var all map[string]any
	if _, err := v.Mgmt.Call(context.Background(), http.MethodGet, v.Mgmt.InVhost("definitions"), nil, &all); err != nil {
		return nil, err
	}
	d := definitions{}
	for kind, value := range all {
		list, _ := value.([]any) // nil for values that are not lists, such as the broker's version
		for _, object := range list {
			text, err := json.Marshal(object)
			if err != nil {
				return nil, err
			}
			d[kind] = append(d[kind], string(text))
		}
		slices.Sort(d[kind])
	}
	return d, nil
}

// names returns the names of the objects of one kind.
func (d definitions) names(kind string) []string {
	names := make([]string, len(d[kind]))
	for i, text := range d[kind] {
		var object struct {
			Name string `json:"name"`
		}
		_ = json.Unmarshal([]byte(text), &object)
		names[i] = object.Name
	}
	return names
}

package live_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Another process, such as retire, may delete exchanges after Apply has declared them and before it has declared their
// bindings. Apply declares them again instead of waiting for each binding in turn, which would take minutes.
func TestApplyDeclaresAgainWhatIsDeletedMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := amqptest.NewServer(amqptest.Options{Version: "4.0.5"})
		defer srv.Close()
		var want topology.Topology
		for i := range 50 {
			name := fmt.Sprintf("x%d", i)
			want.Exchanges = append(want.Exchanges, topology.Exchange{Name: name, Kind: "fanout"})
			want.Bindings = append(want.Bindings, topology.Binding{Exchange: name, Queue: "q"})
		}
		want.Queues = []topology.Queue{{Name: "q"}}
		conn, err := srv.Connect()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		began := time.Now()
		defer srv.Control(func(f amqptest.Frame) (a amqptest.Action) {
			if f.FromClient && f.Method == "queue.bind" {
				a.Delay = max(0, 2*time.Second-time.Since(began))
			}
			return a
		})()
		go func() {
			<-time.After(time.Second)
			other, err := srv.Connect()
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = other.Close() }()
			ch, err := other.Channel()
			if err != nil {
				t.Error(err)
				return
			}
			for _, x := range want.Exchanges {
				if err := ch.ExchangeDelete(x.Name, false, false); err != nil {
					t.Error(err)
				}
			}
		}()
		report, err := live.Broker{Conn: conn}.Apply(t.Context(), want, live.ApplyOptions{})
		if err != nil || report.Count(live.StateDeclared) != 101 {
			t.Errorf("Apply: got %v, %v, want 101 declared and no error", report, err)
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("Apply took %v of virtual time, want at most 10 s", took)
		}
	})
}

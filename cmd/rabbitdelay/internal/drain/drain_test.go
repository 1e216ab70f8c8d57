package drain

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/dlx"
)

// world is an in-memory broker with an exchange, a queue that is bound to it, and a client.
type world struct {
	srv    *amqptest.Server
	client *amqpx.Client
	in     <-chan amqp.Delivery
}

func newWorld(t *testing.T) *world {
	t.Helper()
	srv := amqptest.NewServer(amqptest.Options{})
	t.Cleanup(srv.Close)
	conn, err := srv.Connect()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if err := ch.ExchangeDeclare("orders", "topic", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := ch.QueueDeclare("q", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if err := ch.QueueBind("q", "#", "orders", false, nil); err != nil {
		t.Fatal(err)
	}
	in, err := ch.Consume("q", "", true, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	s, err := dlx.NewBucket(dlx.BucketConfig{Layout: dlx.LayoutHex})
	if err != nil {
		t.Fatal(err)
	}
	client, err := amqpx.Open(t.Context(), amqpx.Config{URL: srv.URL(), Dial: srv.Dial, Strategy: s})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close(t.Context()) })
	return &world{srv, client, in}
}

// However the shell fails, the run returns an error and the next run continues. In the end, all messages have arrived
// once, under one id and not early, and the table is empty.
func TestRunContinues(t *testing.T) {
	cuts := map[string]func(string) (string, error){
		"before it did anything": func(string) (string, error) { return "", errCut },
		"after it did all":       func(a string) (string, error) { return a, errCut },
		"in the middle":          func(a string) (string, error) { return a[:len(a)/2], errCut },
		"without an error":       func(a string) (string, error) { return a[:len(a)-len("}\nok\n")], nil },
	}
	for name, cut := range cuts {
		for at := range 6 { // cuts the inspection, the read, one of three deletions, or nothing
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				f := &fakeTable{}
				const n = 110
				f.fill(n, time.Now().Add(time.Hour), "\x00\x00")
				f.cut = func(i int, answer string) (string, error) {
					if i == at {
						return cut(answer)
					}
					return answer, nil
				}
				cfg := Config{Client: w.client, Shell: f.shell, State: filepath.Join(t.TempDir(), "state"), Vhost: "/", Prefix: "delay", portion: 50}
				tries, sent := 0, int64(0)
				for {
					rep, err := Run(t.Context(), cfg)
					sent += rep.Sent
					if rep.Twice != 0 {
						t.Errorf("%s, answer %d: got Twice = %d, want 0, because no message is due", name, at, rep.Twice)
					}
					if tries++; err == nil {
						break
					}
					if tries == 3 || !errors.Is(err, errCut) && !errors.Is(err, ErrIncomplete) {
						t.Fatalf("%s, cut at answer %d: got error %v, want errCut or ErrIncomplete, and success at the third try", name, at, err)
					}
				}
				if sent != n || len(f.rows) != 0 {
					t.Errorf("%s, answer %d: %d messages were sent and %d are left, want %d and 0", name, at, sent, len(f.rows), n)
				}
				ids := map[string]bool{}
				for range n {
					d := <-w.in
					ids[d.MessageId] = true
				}
				if len(ids) != n {
					t.Errorf("%s, answer %d: got %d ids, want %d", name, at, len(ids), n)
				}
			})
		}
	}
}

// Messages that cannot be moved unchanged stay in the table, and are reported.
func TestRunRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := &fakeTable{}
		for _, p := range []string{"\x00\x00", "\x01\x00\x0260", "\x00\x10\x04mail", "\x20\x00\x00\x00\x00\x09\x07x-death" + "V", "\xff"} {
			f.fill(1, time.Now().Add(time.Hour+time.Duration(len(f.rows))*time.Minute), p)
		}
		f.fill(1, time.Now().Add(2*time.Hour), "\x00\x00")
		f.rows[5].Keys = append(f.rows[5].Keys, []byte("b"))
		f.fill(1, time.Now().Add(20*time.Second), "\x00\x00") // within half of the margin
		cfg := Config{Client: w.client, Shell: f.shell, State: filepath.Join(t.TempDir(), "state"), Vhost: "/", Prefix: "delay", User: "guest"}
		rep, err := Run(t.Context(), cfg)
		if err != nil || rep.Sent != 1 || rep.Deleted != 1 || len(rep.Refused) != 5 || rep.Soon != 3 || rep.Found != 9 || len(f.rows) != 6 {
			t.Errorf("Run: got error %v, %+v and %d rows left, want no error, Found = 9, Sent = 1, Deleted = 1, Soon = 3, 5 refused and 6 rows left", err, rep, len(f.rows))
		}
		cfg.LeaveOut = []string{"expiration", "user-id", "x-death"}
		if rep, err = Run(t.Context(), cfg); err != nil || rep.Sent != 3 || len(rep.Refused) != 2 {
			t.Errorf("Run with LeaveOut: got error %v and %+v, want no error, Sent = 3 and 2 refused", err, rep)
		}
		for range 4 {
			if d := <-w.in; d.Expiration != "" || d.UserId != "" || !strings.HasPrefix(d.MessageId, "plugin-") {
				t.Errorf(`got %+v, want Expiration = "", UserId = "" and MessageId beginning with "plugin-"`, d)
			}
		}
	})
}

// Without the plugin's table, the error says that the table is missing.
func TestRunWithoutATable(t *testing.T) {
	f := &fakeTable{cut: func(_ int, a string) (string, error) { return strings.Replace(a, `"rows":0`, `"rows":-1`, 1), nil }}
	if _, err := Look(t.Context(), Config{Shell: f.shell}); !errors.Is(err, ErrNoTable) {
		t.Errorf("Look without a table: got error %v, want ErrNoTable", err)
	}
}

// Messages are moved from one broker to another only with OtherBroker.
func TestRunBetweenBrokers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := &fakeTable{foreign: true}
		f.fill(3, time.Now().Add(time.Hour), "\x00\x00")
		cfg := Config{Client: w.client, Shell: f.shell, State: filepath.Join(t.TempDir(), "state"), Vhost: "/", Prefix: "delay"}
		if rep, err := Run(t.Context(), cfg); !errors.Is(err, ErrOtherBroker) || rep.Sent != 0 || len(f.rows) != 3 {
			t.Errorf("Run without OtherBroker: got error %v, %+v and %d rows left, want ErrOtherBroker, Sent = 0 and 3 rows", err, rep, len(f.rows))
		}
		cfg.OtherBroker = true
		if rep, err := Run(t.Context(), cfg); err != nil || rep.Sent != 3 || len(f.rows) != 0 {
			t.Errorf("Run with OtherBroker: got error %v, %+v and %d rows left, want no error, Sent = 3 and 0 rows", err, rep, len(f.rows))
		}
		f.foreign = false
		if _, err := Run(t.Context(), cfg); !errors.Is(err, ErrSameBroker) {
			t.Errorf("Run with OtherBroker on the same broker: got error %v, want ErrSameBroker", err)
		}
	})
}

// noNotes is a state file that cannot be written.
type noNotes struct{ *os.File }

func (noNotes) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

// If a message was sent but cannot be recorded, it is still counted and deleted.
func TestMoveOnAFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := &fakeTable{}
		f.fill(3, time.Now().Add(time.Hour), "\x00\x00")
		j, err := openJournal(filepath.Join(t.TempDir(), "state"), "x")
		if err != nil {
			t.Fatal(err)
		}
		j.f = noNotes{j.f.(*os.File)}
		r := run{cfg: Config{Client: w.client, Shell: f.shell, Margin: DefaultMargin, Prefix: "delay", portion: 50}, journal: j}
		for i := range f.rows {
			r.portion = append(r.portion, new(f.rows[i]))
		}
		if err := r.move(t.Context()); !errors.Is(err, syscall.ENOSPC) || r.rep.Sent == 0 || r.rep.Deleted != r.rep.Sent || len(f.rows) != 3-int(r.rep.Sent) {
			t.Errorf("got error %v, %+v and %d rows left, want ENOSPC, Sent > 0, Deleted = %v and %d rows left",
				err, r.rep, len(f.rows), r.rep.Sent, 3-int(r.rep.Sent))
		}
		if err := j.close(); err != nil {
			t.Error(err)
		}
	})
}

// A dry run changes nothing and returns the same report as a run, including the refused messages and the reasons.
func TestDryRunAsksTheBroker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f := &fakeTable{}
		in := func(by time.Duration, exchange, key, properties string) {
			f.fill(1, time.Now().Add(by), properties)
			r := &f.rows[len(f.rows)-1]
			r.Exchange, r.Keys, r.Ref = []byte(exchange), [][]byte{[]byte(key)}, fmt.Append(nil, len(f.rows))
		}
		for i := range 6 {
			key := fmt.Sprint("key", i)
			in(time.Hour, "orders", key, "\x00\x00")
			in(time.Hour, "gone", key, "\x00\x00")
			in(1e6*time.Hour, "orders", key, "\x00\x00")
		}
		cfg := Config{Shell: f.shell, State: filepath.Join(t.TempDir(), "state"), Vhost: "/", Prefix: "delay"}
		client := amqpx.Config{URL: w.srv.URL(), Dial: w.srv.Dial, Strategy: w.client.Strategy(), MaxRouteQueues: 4}
		conn, err := w.srv.Connect()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		before := w.srv.Queues()
		if cfg.DryRun, err = inspect.Rehearse(conn, client); err != nil {
			t.Fatal(err)
		}
		dry, err := Run(t.Context(), cfg)
		if err != nil || !reflect.DeepEqual(w.srv.Queues(), before) || len(f.rows) != 18 {
			t.Fatalf("dry run: got error %v, %d rows and the queues %v, want no error, 18 rows and the queues %[4]v as before", err, len(f.rows), w.srv.Queues(), before)
		}
		cfg.DryRun = nil
		if cfg.Client, err = amqpx.Open(t.Context(), client); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = cfg.Client.Close(t.Context()) }()
		rep, err := Run(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range []*Report{&dry, &rep} {
			r.Deleted = 0
			slices.SortFunc(r.Refused, func(a, b Refused) int { return cmp.Compare(a.Why, b.Why) })
		}
		if !reflect.DeepEqual(dry, rep) || rep.Sent != 4 || len(rep.Refused) != 3 {
			t.Errorf("the dry run reports %+v and the run %+v, want the same, with 4 sent and 3 refused", dry, rep)
		}
	})
}

package doctor

import (
	"maps"
	"strings"
	"testing"
	"time"
)

// mill simulates a layout in which the delay queue for 10s dead-letters to those for 1s and 2s, and a queue of another
// layout. Its methods do what publishers and the broker do between observations.
type mill struct {
	t      *testing.T
	s      StallWatch
	delays map[string]Delay
	at     time.Time
	ready  map[string]int64
	fig    map[string]Figures
}

func newMill(t *testing.T) *mill {
	t.Helper()
	return &mill{
		t: t, delays: map[string]Delay{
			"10s": {"a", "tens", 10 * time.Second}, "1s": {"a", "ones", time.Second}, "2s": {"a", "ones", 2 * time.Second}, "other": {"b", "ones", time.Minute},
		},
		at: time.Unix(1_700_000_000, 0), ready: map[string]int64{"10s": 0, "1s": 0, "2s": 0, "other": 0}, fig: map[string]Figures{},
	}
}

// publish publishes n messages to a queue.
func (m *mill) publish(queue string, n int64) {
	m.ready[queue] += n
	f := m.fig[queue]
	f.Published += n
	m.fig[queue] = f
}

// expire moves n expired messages from a queue to the next one.
func (m *mill) expire(queue, to string, n int64) {
	m.ready[queue] -= n
	if to != "" {
		m.ready[to] += n
	}
}

// letters sets how many dead letters from a queue are in transit.
func (m *mill) letters(queue string, n int64) {
	f := m.fig[queue]
	f.Leaving = n
	m.fig[queue] = f
}

func (m *mill) look(after time.Duration, figures bool) {
	m.at = m.at.Add(after)
	l := Observation{At: m.at, Ready: map[string]int64{}, All: true}
	maps.Copy(l.Ready, m.ready)
	if figures {
		l.Figures, l.Read = map[string]Figures{}, m.at
		for name, n := range m.ready {
			f := m.fig[name]
			f.Ready = n
			l.Figures[name] = f
		}
	}
	m.s.Take(m.delays, l)
}

// decide makes the observations that a decision needs. Before each one after the first, it runs a step, unless the step
// is nil.
func (m *mill) decide(steps ...func()) {
	m.look(0, true)
	for i, after := range []time.Duration{7 * time.Second, 12 * time.Second} {
		if i < len(steps) && steps[i] != nil {
			steps[i]()
		}
		m.look(after, i == 1)
	}
}

func TestStandstill(t *testing.T) {
	const second = time.Second
	for name, c := range map[string]struct {
		run  func(m *mill)
		kept map[string]int64
		open string // the queues with a TTL of up to 1 s that are undecided afterwards
	}{
		"nothing waits": {run: func(m *mill) { m.decide() }},
		"nothing moves": {run: func(m *mill) {
			m.publish("1s", 5)
			m.decide()
		}, kept: map[string]int64{"1s": 5}},
		"nothing moves, and more come": {run: func(m *mill) {
			m.publish("1s", 50)
			m.decide(func() { m.publish("1s", 7) }, func() { m.publish("1s", 2) })
		}, kept: map[string]int64{"1s": 48}},
		"nothing moves, and as much goes elsewhere": {run: func(m *mill) {
			m.publish("1s", 5)
			m.publish("other", 100)
			m.decide(func() {
				m.publish("2s", 100)
				m.expire("other", "", 100)
			}, func() {
				m.expire("2s", "", 100)
				m.publish("2s", 100)
			})
		}, kept: map[string]int64{"1s": 5}},
		"not long enough": {run: func(m *mill) { m.publish("1s", 5); m.look(0, true); m.look(5*second, false); m.look(second, true) }, open: "1s"},
		"figures too old": {run: func(m *mill) { m.publish("1s", 5); m.look(0, true); m.look(7*second, false); m.look(5*second, true) }, open: "1s"},
		"without figures": {run: func(m *mill) { m.publish("1s", 5); m.look(0, false); m.look(7*second, false); m.look(12*second, false) }, open: "1s"},
		"a count that falls": {run: func(m *mill) {
			m.publish("1s", 5)
			m.decide(func() { m.expire("1s", "", 1) })
		}, open: "1s"},
		"one that snoozes each second": {run: func(m *mill) {
			m.publish("1s", 1)
			m.look(0, true)
			for range 19 {
				m.expire("1s", "", 1)
				m.publish("1s", 1)
				m.look(second, false)
			}
			m.look(0, true)
		}, open: "1s"},
		"as many come from the longer queue as leave": {run: func(m *mill) {
			m.publish("10s", 100)
			m.publish("1s", 3)
			m.look(0, true)
			for range 7 {
				m.expire("1s", "", 3)
				m.expire("10s", "1s", 3)
				m.look(second, false)
			}
			m.look(12*second, true)
		}, open: "1s"},
		"as many come as leave, on two hops": {run: func(m *mill) {
			m.publish("10s", 30)
			m.publish("1s", 3)
			m.look(0, true)
			for range 7 {
				m.expire("1s", "", 3)
				m.expire("10s", "1s", 3)
				m.publish("10s", 3)
				m.look(second, false)
			}
			m.look(12*second, true)
		}, open: "1s"},
		"on their way at first": {run: func(m *mill) {
			m.publish("1s", 3)
			m.fig["10s"] = Figures{Leaving: 3}
			m.decide(nil, func() { m.fig["10s"] = Figures{} })
		}, open: "1s"},
		"all stand still": {run: func(m *mill) {
			m.publish("10s", 8)
			m.publish("1s", 3)
			m.look(0, true)
			m.publish("10s", 5)
			m.look(21*second, false)
			m.look(12*second, true)
		}, kept: map[string]int64{"1s": 3, "10s": 8}},
		"it goes on standing still": {run: func(m *mill) {
			m.publish("1s", 5)
			for range 20 {
				m.look(5*second, true)
			}
		}, kept: map[string]int64{"1s": 5}},
		"and moves again": {run: func(m *mill) {
			m.publish("1s", 5)
			for range 20 {
				m.look(5*second, true)
			}
			m.expire("1s", "", 5)
			m.look(second, true)
		}},
		"dead letters stay, and more come": {run: func(m *mill) {
			m.letters("1s", 5)
			m.decide(func() { m.publish("1s", 3) }, func() {
				m.expire("1s", "", 3)
				m.letters("1s", 8)
			})
		}, kept: map[string]int64{"1s": 5}},
		"dead letters stay in a queue of long delays": {run: func(m *mill) {
			m.letters("other", 5)
			for range 20 {
				m.look(5*second, true)
			}
		}, kept: map[string]int64{"other": 5}},
		"dead letters stay next to many waiting messages": {run: func(m *mill) {
			m.publish("other", 1000)
			m.letters("other", 40)
			m.decide(func() {
				m.publish("other", 10)
				m.expire("other", "", 5)
				m.letters("other", 45)
			})
		}, kept: map[string]int64{"other": 40}},
		"dead letters of many messages that wait leave": {run: func(m *mill) {
			m.publish("other", 1000)
			m.letters("other", 40)
			m.decide(func() {
				m.publish("other", 10)
				m.expire("other", "", 50)
			})
		}},
		"dead letters leave in the end": {run: func(m *mill) {
			m.letters("other", 5)
			for range 20 {
				m.look(5*second, true)
			}
			m.letters("other", 0)
			for range 10 {
				m.look(5*second, true)
			}
		}},
		"as many dead letters as before, of a queue that moves": {run: func(m *mill) {
			m.letters("1s", 5)
			m.decide(func() {
				m.publish("1s", 50)
				m.expire("1s", "", 50)
			})
		}},
		"as many dead letters as were ready": {run: func(m *mill) {
			m.publish("1s", 5)
			m.decide(func() { m.expire("1s", "", 5) }, func() { m.letters("1s", 5) })
		}},
		"dead letters, looked at too early": {run: func(m *mill) {
			m.letters("1s", 5)
			m.look(0, true)
			m.look(7*second, false)
			m.look(10*second, true)
		}},
		"the broker starts counting again": {run: func(m *mill) {
			m.publish("1s", 5)
			m.decide(func() { m.fig = map[string]Figures{} })
		}, open: "1s"},
	} {
		m := newMill(t)
		c.run(m)
		found := m.s.Found()
		if len(found) != len(c.kept) {
			t.Errorf("%s: got the queues %+v, want %v", name, found, c.kept)
		}
		for _, f := range found {
			if f.Kept != c.kept[f.Queue] || f.For <= min(f.TTL, minBeyond) {
				t.Errorf("%s: got the queue %+v, want one of %v, for longer than its TTL", name, f, c.kept)
			}
		}
		if open, _ := m.s.Open(m.delays, time.Second); strings.Join(open, " ") != c.open {
			t.Errorf("%s: got the undecided queues %v, want %q", name, open, c.open)
		}
	}
}

func TestDeadLettersAreUndecided(t *testing.T) {
	m := newMill(t)
	m.letters("other", 40)
	m.publish("other", 1000) // more than can be dead-lettered while the doctor watches
	m.look(0, true)
	for _, c := range []struct {
		longest time.Duration
		want    string
		waiting int
	}{{time.Second, "", 0}, {10 * time.Second, "other", 0}, {10 * time.Second, "other", 1}} {
		if c.waiting > 0 {
			m.look(7*time.Second, false)
		}
		if open, waiting := m.s.Open(m.delays, c.longest); strings.Join(open, " ") != c.want || waiting != c.waiting {
			t.Errorf("longest TTL %v: got the undecided queues %v, of which %d have waiting messages, want %+v", c.longest, open, waiting, c)
		}
	}
	m.look(12*time.Second, true)
	if found := m.s.Found(); len(found) != 1 || found[0].Kept != 40 || found[0].Messages != 40 {
		t.Errorf("got the queues %+v, want one with Kept = 40 and Messages = 40", found)
	}
}

func TestDelays(t *testing.T) {
	cfg, snap := healthy(t)
	delays := Delays(cfg, snap.Live)
	if d, ok := delays[firstQueue]; !ok || d.TTL != 100*time.Millisecond || len(delays) != 4 {
		t.Errorf("Delays returned %v, want four queues, the first with a TTL of 100ms", delays)
	}
	snap.native(&cfg)
	if delays = Delays(cfg, snap.Live); len(delays) != 4 {
		t.Errorf("with a holding queue: got %v, want the same four queues, without the holding queue", delays)
	}
}

func TestStandstillIsFound(t *testing.T) {
	cfg, snap := healthy(t)
	snap.Standing = []StalledQueue{{Queue: firstQueue, TTL: 100 * time.Millisecond, Messages: 9, Kept: 7, For: 6 * time.Second}}
	f, ok := byID(Diagnose(cfg, snap), "delay-standstill")
	if !ok || f.Severity != SeverityCritical || !strings.Contains(f.What, firstQueue+" (at least 7 of 9 for 6s)") {
		t.Errorf(`got the finding %+v, want a critical one containing "at least 7 of 9 for 6s"`, f)
	}
}

// The finding names the cause if it is known: a node was recently started without advanced.config.
func TestCauseOfAStandstill(t *testing.T) {
	const conf = "/etc/rabbitmq/rabbitmq.conf"
	files := []string{conf}
	for name, c := range map[string]struct {
		change        func(s *Snapshot)
		want, notWant string
		fix           string
	}{
		"just started": {
			change:  func(s *Snapshot) { s.Nodes[1].ConfigFiles, s.Nodes[1].Uptime = files, 2*time.Minute },
			want:    "Nodes started without advanced.config: n2 2m ago. Messages that became due around the start are sent again after dead_letter_worker_publisher_confirm_timeout, which is 3 minutes by default. The queues continue within 4m, and no message is lost.",
			notWant: "clock", fix: "sleep 240 && rabbitdelay doctor -f delays.yaml",
		},
		"with the setting": {
			change: func(s *Snapshot) {
				s.Nodes[1].ConfigFiles, s.Nodes[1].Uptime = []string{conf, "/etc/rabbitmq/advanced.config"}, 2*time.Minute
			},
			want: "stall in these cases: after a node's clock was set back", notWant: "advanced.config", fix: "universaltime",
		},
		"up for long": {
			change: func(s *Snapshot) { s.Nodes[1].ConfigFiles = files },
			want:   "stall in these cases: after a node's clock was set back", notWant: "advanced.config", fix: "universaltime",
		},
		"unknown": {
			change: func(s *Snapshot) { s.Nodes, s.NodesComplete = nil, false },
			want:   "stall in these cases: after a node started without advanced.config, for up to 6m; after a node's clock was set back", notWant: "3.10", fix: "universaltime",
		},
		"RabbitMQ 4.0": {
			change: func(s *Snapshot) { s.Version = "4.0.5" },
			want:   "sometimes after a virtual host was deleted while a client declared delay queues in it (the process rabbit_fifo_dlx_sup is then gone), until the node restarts", notWant: "3.10", fix: "universaltime",
		},
		"RabbitMQ 4.3": {
			change: func(s *Snapshot) { s.Version = "4.3.6" },
			want:   "while a destination refuses messages.", notWant: "rabbit_fifo_dlx_sup", fix: "universaltime",
		},
		"an old broker": {
			change: func(s *Snapshot) { s.Version = "3.10.8" },
			want:   "on RabbitMQ 3.10 after a full disk, until a restart; before RabbitMQ 4.2.7", notWant: "advanced.config", fix: "universaltime",
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, snap := healthy(t)
			for i := range snap.Nodes {
				snap.Nodes[i].Uptime, snap.Nodes[i].FilesKnown = time.Hour, true
			}
			snap.Standing = []StalledQueue{{Queue: firstQueue, TTL: 100 * time.Millisecond, Messages: 9, Kept: 7, For: 6 * time.Second}}
			c.change(&snap)
			f, _ := byID(Diagnose(cfg, snap), "delay-standstill")
			if !strings.Contains(f.Why, c.want) || strings.Contains(f.Why, c.notWant) || !strings.Contains(f.Fix, c.fix) {
				t.Errorf("got the reason %s\nand the fix %s, want %q but not %q in the reason, and %q in the fix", f.Why, f.Fix, c.want, c.notWant, c.fix)
			}
		})
	}
}

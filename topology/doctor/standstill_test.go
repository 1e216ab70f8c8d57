package doctor

import (
	"maps"
	"strings"
	"testing"
	"time"
)

// mill is a layout of delay queues, 10s before 1s and 2s, and one of another layout, with what publishers and the broker
// do between looks.
type mill struct {
	t      *testing.T
	s      Standstill
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

// publish has channels publish to a queue.
func (m *mill) publish(queue string, n int64) {
	m.ready[queue] += n
	f := m.fig[queue]
	f.Published += n
	m.fig[queue] = f
}

// expire moves messages on.
func (m *mill) expire(queue, to string, n int64) {
	m.ready[queue] -= n
	if to != "" {
		m.ready[to] += n
	}
}

// letters sets how many dead letters of a queue are on their way.
func (m *mill) letters(queue string, n int64) {
	f := m.fig[queue]
	f.Leaving = n
	m.fig[queue] = f
}

func (m *mill) look(after time.Duration, figures bool) {
	m.at = m.at.Add(after)
	l := Look{At: m.at, Ready: map[string]int64{}, All: true}
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

// decide takes the looks that a decision needs, with a step before each after the first; nil: nothing happens.
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
		open string // undecided afterwards, of TTLs up to 1 s
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
		"dead letters stay beside many messages that wait": {run: func(m *mill) {
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
		"the broker counts anew": {run: func(m *mill) {
			m.publish("1s", 5)
			m.decide(func() { m.fig = map[string]Figures{} })
		}, open: "1s"},
	} {
		m := newMill(t)
		c.run(m)
		found := m.s.Found()
		if len(found) != len(c.kept) {
			t.Errorf("%s: found %+v, want %v", name, found, c.kept)
		}
		for _, f := range found {
			if f.Kept != c.kept[f.Queue] || f.For <= min(f.TTL, minBeyond) {
				t.Errorf("%s: found %+v, want %v", name, f, c.kept)
			}
		}
		if open, _ := m.s.Open(m.delays, time.Second); strings.Join(open, " ") != c.open {
			t.Errorf("%s: open are %v, want %q", name, open, c.open)
		}
	}
}

func TestLettersAreOpen(t *testing.T) {
	m := newMill(t)
	m.letters("other", 40)
	m.publish("other", 1000) // for longer than a doctor watches
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
			t.Errorf("%v: open are %v, of which %d wait; want %+v", c.longest, open, waiting, c)
		}
	}
	m.look(12*time.Second, true)
	if found := m.s.Found(); len(found) != 1 || found[0].Kept != 40 || found[0].Messages != 40 {
		t.Errorf("found %+v", found)
	}
}

func TestDelays(t *testing.T) {
	cfg, snap := healthy(t)
	delays := Delays(cfg, snap.Live)
	if d, ok := delays[firstQueue]; !ok || d.TTL != 100*time.Millisecond || len(delays) != 4 {
		t.Errorf("got %v", delays)
	}
	snap.native(&cfg)
	if len(Delays(cfg, snap.Live)) != 4 {
		t.Error("queues without a TTL of their own are among them")
	}
}

func TestStandstillIsFound(t *testing.T) {
	cfg, snap := healthy(t)
	snap.Standing = []Standing{{Queue: firstQueue, TTL: 100 * time.Millisecond, Messages: 9, Kept: 7, For: 6 * time.Second}}
	f, ok := byID(Diagnose(cfg, snap), "delay-standstill")
	if !ok || f.Severity != SeverityCritical || !strings.Contains(f.What, firstQueue+" (at least 7 of 9 for 6s)") {
		t.Errorf("got %+v", f)
	}
}

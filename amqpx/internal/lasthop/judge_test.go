package lasthop

import (
	"testing"
	"time"
)

// world is one message's life: when it was sent and received by a true clock, and by how
// much the clocks are wrong.
type world struct {
	delay, lead time.Duration
	absolute    bool
	publisher   time.Duration // its clock minus the true one
	broker      time.Duration // at the end of the wait
	own         time.Duration
	early       time.Duration // how much too early the broker let it go
	queued      time.Duration // how long it waited behind others, or was held by another consumer
	again       bool          // it was handed out before
	straight    bool          // it went through no delay queue
	returned    int
}

var epoch = time.Date(2030, 1, 1, 12, 0, 0, 300_000_000, time.UTC)

// receive returns what the judge says, and how long it is to the true instant of the message.
func (w world) receive(j *Judge) (wait time.Duration, again bool, rest time.Duration) {
	d, rest := w.decide(j)
	return d.Wait, d.Return, rest
}

// arrived returns when the message arrives by a true clock.
func (w world) arrived() time.Time {
	left := epoch.Add(w.delay - w.lead - w.early)
	if left.Before(epoch) {
		left = epoch
	}
	return left.Add(w.queued)
}

func (w world) decide(j *Judge) (d Decision, rest time.Duration) {
	due := epoch.Add(w.delay)
	arrived := w.arrived()
	a := Arrival{Lead: w.lead, Absolute: w.absolute, Sent: epoch.Add(w.publisher).Truncate(time.Second), Returned: w.returned, Again: w.again}
	a.Due = due
	if !w.absolute {
		a.Due = due.Add(w.publisher)
	}
	if !w.straight {
		a.Expired = arrived.Add(w.broker - w.queued).Truncate(time.Second)
	}
	return j.Wait(a, arrived.Add(w.own), arrived.Sub(epoch)), due.Sub(arrived)
}

func TestJudge(t *testing.T) {
	const hour = time.Hour
	for name, c := range map[string]struct {
		world
		again bool
		late  time.Duration // at most
	}{
		"all clocks right":                       {world{delay: 60e9}, false, 0},
		"with a lead":                            {world{delay: 60e9, lead: 4e8}, false, 0},
		"no delay, publisher a second ahead":     {world{delay: 0, publisher: 9e8}, false, 9e8},
		"broker a second early":                  {world{delay: 60e9, broker: 1e9, early: 1e9}, false, 0},
		"broker ten minutes ahead":               {world{delay: 60e9, broker: 600e9, early: 55e9}, true, 0},
		"broker ahead, instant":                  {world{delay: 60e9, absolute: true, broker: 600e9, early: 55e9}, true, 0},
		"broker ahead, lead":                     {world{delay: 60e9, lead: 4e8, broker: 30e9, early: 30e9}, true, 0},
		"policy with a TTL":                      {world{delay: hour, early: 59 * time.Minute}, true, 0},
		"own clock an hour ahead":                {world{delay: 60e9, own: hour}, false, 0},
		"own clock an hour ahead, lead":          {world{delay: 60e9, lead: 4e8, own: hour}, false, 0},
		"own clock 5 s ahead, long lead":         {world{delay: 60e9, lead: 10e9, own: 5e9}, false, 0},
		"own clock 9 s ahead, instant, lead":     {world{delay: 60e9, lead: 10e9, own: 9e9, absolute: true}, false, 0},
		"publisher 5 s behind, long lead":        {world{delay: 60e9, lead: 10e9, publisher: -5e9}, false, 0},
		"5 s apart to both sides, long lead":     {world{delay: 60e9, lead: 10e9, publisher: -5e9, own: 5e9, broker: -90 * time.Minute}, false, 0},
		"behind others for 5 s, long lead":       {world{delay: 60e9, lead: 10e9, queued: 5e9}, false, 5e9},
		"own clock an hour behind":               {world{delay: 60e9, own: -hour}, false, 0},
		"own clock an hour behind, lead":         {world{delay: 60e9, lead: 4e8, own: -hour}, false, 0},
		"own clock behind, instant":              {world{delay: 60e9, absolute: true, own: -hour}, false, 0},
		"publisher an hour ahead":                {world{delay: 60e9, publisher: hour}, false, 0},
		"publisher an hour ahead, lead":          {world{delay: 60e9, lead: 4e8, publisher: hour}, false, 0},
		"publisher an hour behind, lead":         {world{delay: 60e9, lead: 4e8, publisher: -hour}, false, 0},
		"publisher ahead, instant, so too early": {world{delay: 3 * hour, absolute: true, publisher: hour, early: hour}, true, 0},
		"behind others for a minute":             {world{delay: 60e9, lead: 4e8, queued: 60e9}, false, 60e9 + 4e8},
	} {
		wait, again, rest := c.receive(&Judge{})
		if again != c.again {
			t.Errorf("%s: sent back is %v", name, again)
		}
		if late := wait - rest; !again && (late < 0 || late > c.late) {
			t.Errorf("%s: handled %v after its instant, want 0 to %v", name, late, c.late)
		}
	}
}

// A message that waited behind others is on time where the own clock is known to be right, and so is
// one that nothing has delayed because its lead is longer.
func TestLongLeads(t *testing.T) {
	j := &Judge{}
	world{delay: 60e9, lead: 10e9}.receive(j)
	if wait, _, rest := (world{delay: 60e9, lead: 10e9, queued: 5e9}).receive(j); wait != rest {
		t.Errorf("behind others for 5 s, waits %v of %v", wait, rest)
	}
	a := Arrival{Due: epoch.Add(3 * time.Second), Lead: 10 * time.Second, Sent: epoch.Truncate(time.Second)}
	if d := (&Judge{}).Wait(a, epoch, 0); d.Return || d.Wait != 3*time.Second {
		t.Errorf("a delay of 3 s with a lead of 10 s: %+v", d)
	}
}

// A message that comes back, or comes long after its instant, is held for what is left of its lead: by the own
// clock where the broker's agrees, and else by the broker's.
func TestComesBack(t *testing.T) {
	const hour, slack = time.Hour, 2 * time.Second // of two instants in whole seconds
	for name, c := range map[string]struct {
		world
		untold bool          // the broker has not told its clock
		late   time.Duration // at most
	}{
		"held for 4 s":                          {world{delay: 60e9, lead: 10e9, queued: 4e9, again: true}, false, 0},
		"held for longer than its lead":         {world{delay: 60e9, lead: 10e9, queued: 40e9, again: true}, false, 40e9},
		"overdue by half an hour":               {world{delay: 60e9, lead: 5e9, queued: hour / 2}, false, hour / 2},
		"held, publisher an hour behind":        {world{delay: 60e9, lead: 10e9, publisher: -hour, queued: 4e9, again: true}, false, slack},
		"held, publisher an hour ahead":         {world{delay: 60e9, lead: 10e9, publisher: hour, queued: 4e9, again: true}, false, slack},
		"held, own clock 5 s ahead":             {world{delay: 60e9, lead: 10e9, own: 5e9, queued: 4e9, again: true}, false, slack},
		"held, own clock an hour ahead":         {world{delay: 60e9, lead: 10e9, own: hour, queued: 4e9, again: true}, false, slack},
		"held, own clock an hour behind":        {world{delay: 60e9, lead: 10e9, own: -hour, queued: 4e9, again: true}, false, slack},
		"first, own clock an hour ahead":        {world{delay: 60e9, lead: 10e9, own: hour}, false, 0},
		"held, nobody tells":                    {world{delay: 60e9, lead: 10e9, queued: 4e9, again: true}, true, 4e9},
		"held, own clock ahead, nobody tells":   {world{delay: 60e9, lead: 10e9, own: hour, queued: 4e9, again: true}, true, 4e9},
		"straight and held":                     {world{delay: 8e9, lead: 10e9, queued: 4e9, again: true, straight: true}, false, 0},
		"straight and held, own clock ahead":    {world{delay: 8e9, lead: 10e9, own: hour, queued: 4e9, again: true, straight: true}, false, 5e9},
		"straight and first, publisher behind":  {world{delay: 8e9, lead: 10e9, publisher: -hour, straight: true}, false, 1e9},
		"straight and first, behind others 4 s": {world{delay: 8e9, lead: 10e9, queued: 4e9, straight: true}, false, 5e9},
	} {
		j := &Judge{}
		if arrived := c.arrived(); !c.untold {
			j.Told(arrived.Add(c.broker).Truncate(time.Second), arrived.Sub(epoch))
		}
		wait, again, rest := c.receive(j)
		if late := wait - rest; again || late < 0 && wait > 0 || late > c.late || wait == 0 && rest > 0 {
			t.Errorf("%s: waits %v of %v, sent back is %v; want at most %v more", name, wait, rest, again, c.late)
		}
	}
}

// A message that is later than its lead by the own clock is held in doubt, until the broker has told its own.
func TestDoubt(t *testing.T) {
	w := world{delay: 60e9, lead: 10e9, queued: 30e9}
	j := &Judge{}
	if d, _ := w.decide(j); !d.Doubt || d.Wait != w.lead {
		t.Errorf("without an answer of the broker: %+v", d)
	}
	j.Told(w.arrived().Truncate(time.Second), w.arrived().Sub(epoch))
	if d, _ := w.decide(j); d.Doubt || d.Wait != 0 {
		t.Errorf("with an answer of the broker: %+v", d)
	}
}

// No clocks that differ by 2 s or more, whatever their fractions of a second, make a message early by as much.
func TestEarlyBound(t *testing.T) {
	for own := time.Duration(0); own <= 4*time.Second; own += 100 * time.Millisecond {
		for behind := time.Duration(0); behind <= 4*time.Second; behind += 100 * time.Millisecond {
			j := &Judge{}
			for at := time.Duration(0); at < time.Second; at += 70 * time.Millisecond {
				w := world{delay: 60*time.Second + at, lead: 10e9, own: own, publisher: -behind}
				if wait, _, rest := w.receive(j); rest-wait > Allowed {
					t.Fatalf("own clock %v ahead, publisher's %v behind: early by %v", own, behind, rest-wait)
				}
			}
		}
	}
}

// The own clock decides about what went straight to the queue if it agrees with the broker's and publishers' do too.
func TestStraightAndOverdue(t *testing.T) {
	straight := world{delay: 8e9, lead: 10e9, queued: 60e9, straight: true}
	j := &Judge{}
	world{delay: 60e9, lead: 10e9, queued: 100e6}.receive(j)
	if wait, _, _ := straight.receive(j); wait != 0 {
		t.Errorf("an overdue message waits %v although all clocks are known to be right", wait)
	}
	world{delay: 70e9, lead: 10e9, publisher: -5e9}.receive(j)
	if wait, _, _ := straight.receive(j); wait == 0 {
		t.Error("an overdue message is handled although a publisher's clock is known to be behind")
	}
}

// What short delays tell of the own clock counts for long ones.
func TestBehindIsRemembered(t *testing.T) {
	j := &Judge{}
	long := world{delay: 3 * time.Hour, own: -time.Hour}
	if _, again, _ := long.receive(j); !again {
		t.Error("nothing tells that the own clock is wrong, and the message would be early by it")
	}
	world{delay: 60e9, own: -time.Hour}.receive(j)
	now := epoch.Add(-time.Hour)
	if by, since, behind := j.Behind(now); !behind || by < time.Hour-2*time.Second || by > time.Hour+2*time.Minute || since.IsZero() {
		t.Errorf("behind by %v since %v: %v", by, since, behind)
	}
	short := world{delay: 61e9, own: -time.Hour}
	if _, again, _ := short.receive(j); again {
		t.Error("sent back although the own clock is known to be wrong")
	}
	world{delay: 60e9}.receive(j) // the clock was set
	if _, _, behind := j.Behind(epoch.Add(time.Minute)); behind {
		t.Error("behind after a step of the clock to what is right")
	}
}

// A message that comes back early again and again waits here, and is at last handled.
func TestNoLoop(t *testing.T) {
	j := &Judge{}
	wait, again, _ := world{delay: time.Hour, early: 59 * time.Minute, returned: Patience}.receive(j)
	if wait != MaxHold && !again {
		t.Errorf("waits %v and goes back: %v", wait, again)
	}
	wait, again, rest := world{delay: time.Hour, early: 30 * time.Second, returned: Patience}.receive(j)
	if wait != rest || again {
		t.Errorf("waits %v of %v and goes back: %v", wait, rest, again)
	}
}

// Whoever forges an offset gains no more than by a forged instant.
func TestForgedOffset(t *testing.T) {
	a := Arrival{Due: epoch.Add(time.Minute), Sent: epoch, Absolute: true, Offset: 1000 * time.Hour}
	if d := (&Judge{}).Wait(a, epoch, 0); !d.Return {
		t.Error("an offset of 1000 hours was believed")
	}
}

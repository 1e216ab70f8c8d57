package duecheck

import (
	"testing"
	"time"
)

// world describes when a message was sent and received according to a correct clock, and how wrong the other clocks
// are.
type world struct {
	delay, lead time.Duration
	absolute    bool
	publisher   time.Duration // its clock minus the correct one
	broker      time.Duration // its clock minus the correct one at the end of the wait
	own         time.Duration
	early       time.Duration // how much too early the broker released the message
	queued      time.Duration // how long it waited behind other messages, or was held by another consumer
	straight    bool          // the message passed through no delay queue
	returned    int
}

var epoch = time.Date(2030, 1, 1, 12, 0, 0, 300_000_000, time.UTC)

// receive returns the judge's decision, and how long the message has to wait until it is due according to a correct
// clock.
func (w world) receive(j *Judge) (wait time.Duration, again bool, rest time.Duration) {
	d, rest := w.decide(j)
	return d.Wait, d.Return, rest
}

// arrived returns the time at which the message arrives, according to a correct clock.
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
	a := Arrival{Lead: w.lead, Absolute: w.absolute, Sent: epoch.Add(w.publisher).Truncate(time.Second), Returned: w.returned}
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
		late  time.Duration // the message is late by at most this
	}{
		"all clocks right":                        {world{delay: 60e9}, false, 0},
		"with a lead":                             {world{delay: 60e9, lead: 4e8}, false, 0},
		"no delay, publisher a second ahead":      {world{delay: 0, publisher: 9e8}, false, 9e8},
		"broker a second early":                   {world{delay: 60e9, broker: 1e9, early: 1e9}, false, 0},
		"broker ten minutes ahead":                {world{delay: 60e9, broker: 600e9, early: 55e9}, true, 0},
		"broker ahead, absolute":                  {world{delay: 60e9, absolute: true, broker: 600e9, early: 55e9}, true, 0},
		"broker ahead, lead":                      {world{delay: 60e9, lead: 4e8, broker: 30e9, early: 30e9}, true, 0},
		"policy with a TTL":                       {world{delay: hour, early: 59 * time.Minute}, true, 0},
		"own clock an hour ahead":                 {world{delay: 60e9, own: hour}, false, 0},
		"own clock an hour ahead, lead":           {world{delay: 60e9, lead: 4e8, own: hour}, false, 0},
		"own clock 5 s ahead, long lead":          {world{delay: 60e9, lead: 10e9, own: 5e9}, false, 0},
		"own clock 9 s ahead, absolute, lead":     {world{delay: 60e9, lead: 10e9, own: 9e9, absolute: true}, false, 0},
		"publisher 5 s behind, long lead":         {world{delay: 60e9, lead: 10e9, publisher: -5e9}, false, 0},
		"5 s apart to both sides, long lead":      {world{delay: 60e9, lead: 10e9, publisher: -5e9, own: 5e9, broker: -90 * time.Minute}, false, 0},
		"behind others for 5 s, long lead":        {world{delay: 60e9, lead: 10e9, queued: 5e9}, false, 5e9},
		"own clock an hour behind":                {world{delay: 60e9, own: -hour}, false, 0},
		"own clock an hour behind, lead":          {world{delay: 60e9, lead: 4e8, own: -hour}, false, 0},
		"own clock behind, absolute":              {world{delay: 60e9, absolute: true, own: -hour}, false, 0},
		"publisher an hour ahead":                 {world{delay: 60e9, publisher: hour}, false, 0},
		"publisher an hour ahead, lead":           {world{delay: 60e9, lead: 4e8, publisher: hour}, false, 0},
		"publisher ahead by less than the delay":  {world{delay: 3 * hour, publisher: hour}, true, 0},
		"publisher an hour behind, lead":          {world{delay: 60e9, lead: 4e8, publisher: -hour}, false, 0},
		"publisher ahead, absolute, so too early": {world{delay: 3 * hour, absolute: true, publisher: hour, early: hour}, true, 0},
		"behind others for a minute":              {world{delay: 60e9, lead: 4e8, queued: 60e9}, false, 60e9 + 4e8},
	} {
		wait, again, rest := c.receive(&Judge{})
		if again != c.again {
			t.Errorf("%s: the message was returned: %t, want %t", name, again, c.again)
		}
		if late := wait - rest; !again && (late < 0 || late > c.late) {
			t.Errorf("%s: the message was handled %v after its due time, want 0 to %v", name, late, c.late)
		}
	}
}

// A message that waited behind others in the queue is on time if the consumer's clock is known to be right. So is a
// message that was not delayed because its lead is longer than its delay.
func TestLongLeads(t *testing.T) {
	j := &Judge{}
	world{delay: 60e9, lead: 10e9}.receive(j)
	if wait, _, rest := (world{delay: 60e9, lead: 10e9, queued: 5e9}).receive(j); wait != rest {
		t.Errorf("a message that waited behind others for 5 s: got wait %v, want %v", wait, rest)
	}
	a := Arrival{Due: epoch.Add(3 * time.Second), Lead: 10 * time.Second, Sent: epoch.Truncate(time.Second)}
	if d := (&Judge{}).Wait(a, epoch, 0); d.Return || d.Wait != 3*time.Second {
		t.Errorf("a delay of 3 s with a lead of 10 s: got %+v, want Wait = 3s and Return = false", d)
	}
}

// If a message is redelivered or arrives long after its due time, the consumer waits for the rest of the lead. It uses
// its own clock if the broker's clock agrees with it, and otherwise the broker's.
func TestComesBack(t *testing.T) {
	const hour, slack = time.Hour, 2 * time.Second // the possible error of two times in whole seconds
	for name, c := range map[string]struct {
		world
		untold bool          // the broker has not reported its clock
		late   time.Duration // the message is late by at most this
	}{
		"held for 4 s":                                 {world{delay: 60e9, lead: 10e9, queued: 4e9}, false, 0},
		"held for longer than its lead":                {world{delay: 60e9, lead: 10e9, queued: 40e9}, false, 40e9},
		"overdue by half an hour":                      {world{delay: 60e9, lead: 5e9, queued: hour / 2}, false, hour / 2},
		"held, publisher an hour behind":               {world{delay: 60e9, lead: 10e9, publisher: -hour, queued: 4e9}, false, slack},
		"held, publisher an hour ahead":                {world{delay: 60e9, lead: 10e9, publisher: hour, queued: 4e9}, false, slack},
		"held, own clock 5 s ahead":                    {world{delay: 60e9, lead: 10e9, own: 5e9, queued: 4e9}, false, slack},
		"held, own clock an hour ahead":                {world{delay: 60e9, lead: 10e9, own: hour, queued: 4e9}, false, slack},
		"held, own clock an hour behind":               {world{delay: 60e9, lead: 10e9, own: -hour, queued: 4e9}, false, slack},
		"first, own clock an hour ahead":               {world{delay: 60e9, lead: 10e9, own: hour}, false, 0},
		"held, broker's time unknown":                  {world{delay: 60e9, lead: 10e9, queued: 4e9}, true, 4e9},
		"held, own clock ahead, broker's time unknown": {world{delay: 60e9, lead: 10e9, own: hour, queued: 4e9}, true, 4e9},
		"straight and held":                            {world{delay: 8e9, lead: 10e9, queued: 4e9, straight: true}, false, 5e9},
		"straight and held, own clock ahead":           {world{delay: 8e9, lead: 10e9, own: hour, queued: 4e9, straight: true}, false, 5e9},
		"straight and first, publisher behind":         {world{delay: 8e9, lead: 10e9, publisher: -hour, straight: true}, false, 1e9},
		"straight and first, behind others 4 s":        {world{delay: 8e9, lead: 10e9, queued: 4e9, straight: true}, false, 5e9},
	} {
		j := &Judge{}
		if arrived := c.arrived(); !c.untold {
			j.Told(arrived.Add(c.broker).Truncate(time.Second), arrived.Sub(epoch))
		}
		wait, again, rest := c.receive(j)
		if late := wait - rest; again || late < 0 && wait > 0 || late > c.late || wait == 0 && rest > 0 {
			t.Errorf("%s: got the wait %v and returned = %t, want %v to %v and false", name, wait, again, max(rest, 0), rest+c.late)
		}
	}
}

// If a message is late by more than its lead according to the consumer's clock, and the broker has not reported its
// clock yet, the consumer holds the message until it has.
func TestDoubt(t *testing.T) {
	w := world{delay: 60e9, lead: 10e9, queued: 30e9}
	j := &Judge{}
	if d, _ := w.decide(j); !d.Doubt || d.Wait != w.lead {
		t.Errorf("before the broker's answer: got %+v, want Doubt = true and Wait = %v", d, w.lead)
	}
	j.Told(w.arrived().Truncate(time.Second), w.arrived().Sub(epoch))
	if d, _ := w.decide(j); d.Doubt || d.Wait != 0 {
		t.Errorf("after the broker's answer: got %+v, want Doubt = false and Wait = 0", d)
	}
}

// Differences between the clocks never make a message early by more than Allowed, whatever the fractions of a second.
func TestEarlyBound(t *testing.T) {
	for own := time.Duration(0); own <= 4*time.Second; own += 100 * time.Millisecond {
		for behind := time.Duration(0); behind <= 4*time.Second; behind += 100 * time.Millisecond {
			j := &Judge{}
			for at := time.Duration(0); at < time.Second; at += 70 * time.Millisecond {
				w := world{delay: 60*time.Second + at, lead: 10e9, own: own, publisher: -behind}
				if wait, _, rest := w.receive(j); rest-wait > Allowed {
					t.Fatalf("own clock %v ahead, publisher's clock %v behind: got a message %v early, want at most %v", own, behind, rest-wait, Allowed)
				}
			}
		}
	}
}

// Another publisher's clock and the broker's clock say nothing about a publisher's clock. A message that was sent
// straight to its queue, and may have waited there, is therefore held for its whole delay.
func TestStraight(t *testing.T) {
	j := &Judge{}
	w := world{delay: 8e9, lead: 10e9, straight: true, publisher: -time.Hour}
	world{delay: 60e9, lead: 10e9}.receive(j)
	arrived := w.arrived()
	j.Told(arrived.Truncate(time.Second), arrived.Sub(epoch))
	if wait, back, rest := w.receive(j); back || wait < rest {
		t.Errorf("publisher's clock an hour behind: got the wait %v and returned = %t, want at least %v and false", wait, back, rest)
	}
}

// When messages with short delays show that the consumer's clock is behind, the judge also applies that to messages
// with long delays.
func TestBehindIsRemembered(t *testing.T) {
	j := &Judge{}
	long := world{delay: 3 * time.Hour, own: -time.Hour}
	if _, again, _ := long.receive(j); !again {
		t.Error("long delay, own clock an hour behind, not known yet: got returned = false, want true")
	}
	world{delay: 60e9, own: -time.Hour}.receive(j)
	now := epoch.Add(-time.Hour)
	if by, since, behind := j.Behind(now); !behind || by < time.Hour-2*time.Second || by > time.Hour+2*time.Minute || since.IsZero() {
		t.Errorf("Behind: got %v, %v, %t, want %v to %v, a time and true",
			by, since, behind, time.Hour-2*time.Second, time.Hour+2*time.Minute)
	}
	short := world{delay: 61e9, own: -time.Hour}
	if _, again, _ := short.receive(j); again {
		t.Error("own clock known to be an hour behind: got returned = true, want false")
	}
	world{delay: 60e9}.receive(j) // after the clock was corrected
	if _, _, behind := j.Behind(epoch.Add(time.Minute)); behind {
		t.Error("Behind after the own clock was corrected: got true, want false")
	}
}

// A message that was returned Patience times waits in the consumer instead, so that it is handled eventually.
func TestNoLoop(t *testing.T) {
	j := &Judge{}
	wait, again, _ := world{delay: time.Hour, early: 59 * time.Minute, returned: Patience}.receive(j)
	if wait != MaxHold || !again {
		t.Errorf("59 minutes early: got the wait %v and returned = %t, want %v and true", wait, again, MaxHold)
	}
	wait, again, rest := world{delay: time.Hour, early: 30 * time.Second, returned: Patience}.receive(j)
	if wait != rest || again {
		t.Errorf("30 s early: got the wait %v and returned = %t, want %v and false", wait, again, rest)
	}
}

// A forged clock offset has no more effect than a forged due time.
func TestForgedOffset(t *testing.T) {
	a := Arrival{Due: epoch.Add(time.Minute), Sent: epoch, Absolute: true, Offset: 1000 * time.Hour}
	if d := (&Judge{}).Wait(a, epoch, 0); !d.Return {
		t.Errorf("an offset of 1000 hours: got %+v, want Return = true, as without the offset", d)
	}
}

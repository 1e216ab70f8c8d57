package lab

import (
	"errors"
	"fmt"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/cmd/internal/lateness"
)

// facts are what the database holds at the end of a demo.
type facts struct {
	orders    map[string]storedOrder // by id
	effects   map[string][]int64     // order id -> when they were committed, epoch ms
	processed map[string]bool        // message ids that a consumer has recorded
}

type storedOrder struct {
	status string
	due    int64 // epoch ms
}

// ledger is the demo's result; its fields are the last line of --json.
type ledger struct {
	Orders      int                  `json:"orders"`
	Paid        int                  `json:"paid"`
	Cancelled   int                  `json:"cancelled"`
	Early       int                  `json:"early"`
	Lost        int                  `json:"lost"`
	Duplicates  int64                `json:"duplicates_injected"`
	EffectTwice int                  `json:"effects_twice"`
	Lateness    lateness.Percentiles `json:"lateness_ms"`
	Strategy    string               `json:"strategy"`
	Broker      string               `json:"broker"`
	Database    string               `json:"database"`
	// Posts is the other story; nil when it was not told.
	Posts *postsLedger `json:"posts,omitempty"`

	wrong []string // what contradicts itself, for people
}

// claim is what the producer knows of one order.
type claim struct {
	id, message string
	due         int64 // epoch ms
}

// drawUp compares what was placed with what the database holds. earlyArrivals
// are messages that came before they were due, whatever their effect was.
//
// Lost is an order whose message no consumer has recorded, or that is neither
// paid nor cancelled, or that is gone itself. An effect on an order that is not
// cancelled, and a cancelled order without one, contradict the transaction.
func drawUp(claims []claim, f facts, earlyArrivals int) ledger {
	l := ledger{Orders: len(claims)}
	early := 0
	known := map[string]bool{}
	for _, c := range claims {
		known[c.id] = true
		o, ok := f.orders[c.id]
		effects := f.effects[c.id]
		switch {
		case ok && o.status == "paid":
			l.Paid++
		case ok && o.status == "cancelled":
			l.Cancelled++
		}
		if !ok || o.status == "unpaid" || !f.processed[c.message] {
			l.Lost++
		}
		if len(effects) > 1 {
			l.EffectTwice++
		}
		for _, at := range effects {
			if at < c.due {
				early++
			}
		}
		if cancelled := ok && o.status == "cancelled"; cancelled != (len(effects) > 0) {
			l.wrong = append(l.wrong, fmt.Sprintf("order %s is %s with %d effects", c.id, o.status, len(effects)))
		}
	}
	for id := range f.effects {
		if !known[id] {
			l.wrong = append(l.wrong, fmt.Sprintf("an effect on order %s, which nobody placed", id))
		}
	}
	l.Early = max(early, earlyArrivals)
	return l
}

// reckon draws up the ledger of a run.
func (d *demo) reckon(f facts) ledger {
	claims := make([]claim, 0, len(d.orders))
	for _, o := range d.orders {
		claims = append(claims, claim{o.id, o.message, o.due})
	}
	p, early := d.late.Summary()
	l := drawUp(claims, f, early)
	l.Lateness, l.Duplicates = p, d.duplicates.Load()
	return l
}

// verdict is nil when the ledger is as it has to be.
func (l ledger) verdict() error {
	var bad []string
	for _, x := range []struct {
		n    int
		what string
	}{{l.Early, "early"}, {l.Lost, "lost"}, {l.EffectTwice, "done twice"}} {
		if x.n != 0 {
			bad = append(bad, fmt.Sprintf("%d %s", x.n, x.what))
		}
	}
	if len(l.wrong) > 0 {
		bad = append(bad, fmt.Sprintf("%d contradictions (%s)", len(l.wrong), l.wrong[0]))
	}
	bad = append(bad, l.Posts.bad()...)
	if len(bad) == 0 {
		return nil
	}
	return errors.New("the promises do not hold: " + strings.Join(bad, ", "))
}

// showLedger prints the result; its error makes the exit code.
func (a *app) showLedger(l ledger) error {
	if a.JSON {
		if err := a.PrintJSON(l); err != nil {
			return err
		}
		return l.verdict()
	}
	a.Printf("\n")
	if l.Orders > 0 {
		l.showOrders(a)
	}
	if l.Posts != nil {
		l.Posts.show(a)
	}
	a.Printf("  strategy %s, RabbitMQ %s, %s\n\n", l.Strategy, l.Broker, l.Database)
	return l.verdict()
}

func (l ledger) showOrders(a *app) {
	a.Printf("  orders placed            %8d\n", l.Orders)
	a.Printf("  paid in time             %8d\n", l.Paid)
	a.Printf("  cancelled                %8d\n", l.Cancelled)
	a.Printf("  duplicates injected      %8d\n", l.Duplicates)
	a.Printf("  ---------------------------------\n")
	a.Printf("  early                    %8d  %s\n", l.Early, mark(l.Early))
	a.Printf("  lost                     %8d  %s\n", l.Lost, mark(l.Lost))
	a.Printf("  effects committed twice  %8d  %s\n", l.EffectTwice, mark(l.EffectTwice))
	a.Printf("  ---------------------------------\n")
	showLateness(a, l.Lateness)
	a.Printf("\n")
}

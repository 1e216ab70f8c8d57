package lab

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/cmd/internal/lateness"
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/program"
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/term"
)

// honest is a run in which nothing went wrong: even orders are paid, odd ones
// cancelled.
func honest() ([]claim, facts) {
	var claims []claim
	f := facts{orders: map[string]storedOrder{}, effects: map[string][]int64{}, processed: map[string]bool{}}
	for i := range int64(10) {
		c := claim{id: fmt.Sprint(i), message: fmt.Sprint("m", i), due: 1000 + i}
		claims = append(claims, c)
		f.processed[c.message] = true
		if i%2 == 0 {
			f.orders[c.id] = storedOrder{"paid", c.due}
			continue
		}
		f.orders[c.id] = storedOrder{"cancelled", c.due}
		f.effects[c.id] = []int64{c.due}
	}
	return claims, f
}

func TestLedgerOfHonestRun(t *testing.T) {
	claims, f := honest()
	l := drawUp(claims, f, 0)
	if l.Orders != 10 || l.Paid != 5 || l.Cancelled != 5 || l.Early+l.Lost+l.EffectTwice+len(l.wrong) != 0 || l.verdict() != nil {
		t.Errorf("got %+v, %v", l, l.verdict())
	}
}

// Every kind of violation, planted into an honest run, is found.
func TestLedgerFindsViolations(t *testing.T) {
	for _, c := range []struct {
		name  string
		plant func(*facts)
		early int
		want  string // of early, lost, twice, wrong
	}{
		{"the message of a paid order never came", func(f *facts) { delete(f.processed, "m2") }, 0, "0 1 0 0"},
		{"an order stayed unpaid", func(f *facts) {
			f.orders["3"] = storedOrder{"unpaid", 1003}
			delete(f.effects, "3")
		}, 0, "0 1 0 0"},
		{"an order is gone", func(f *facts) { delete(f.orders, "4") }, 0, "0 1 0 0"},
		{"an order and its effect are gone", func(f *facts) { delete(f.orders, "5"); delete(f.effects, "5") }, 0, "0 1 0 0"},
		{"an effect before the due instant", func(f *facts) { f.effects["3"] = []int64{1002} }, 0, "1 0 0 0"},
		{"a message without effect came early", func(*facts) {}, 1, "1 0 0 0"},
		{"an effect twice", func(f *facts) { f.effects["3"] = []int64{1003, 1004} }, 0, "0 0 1 0"},
		{"a paid order was cancelled all the same", func(f *facts) { f.effects["2"] = []int64{1002} }, 0, "0 0 0 1"},
		{"a cancelled order without effect", func(f *facts) { delete(f.effects, "3") }, 0, "0 0 0 1"},
		{"an effect on an unknown order", func(f *facts) { f.effects["x"] = []int64{1} }, 0, "0 0 0 1"},
		{"everything at once", func(f *facts) {
			delete(f.processed, "m2")
			f.effects["3"] = []int64{1, 2, 3}
			f.effects["4"] = []int64{2000}
		}, 0, "3 1 1 1"},
	} {
		claims, f := honest()
		c.plant(&f)
		l := drawUp(claims, f, c.early)
		if got := fmt.Sprint(l.Early, l.Lost, l.EffectTwice, len(l.wrong)); got != c.want {
			t.Errorf("%s: early, lost, twice, wrong are %s; want %s", c.name, got, c.want)
		}
		if l.verdict() == nil {
			t.Errorf("%s: passed", c.name)
		}
	}
}

func TestVerdictSaysWhat(t *testing.T) {
	l := ledger{Early: 1, Lost: 2, EffectTwice: 3, wrong: []string{"order 7 is paid with 1 effects"}}
	want := "the promises do not hold: 1 early, 2 lost, 3 done twice, 1 contradictions (order 7 is paid with 1 effects)"
	if got := l.verdict().Error(); got != want {
		t.Errorf("got %s", got)
	}
}

func TestLedgerOutput(t *testing.T) {
	l := ledger{
		Orders: 200, Paid: 99, Cancelled: 101, Duplicates: 80, Lateness: lateness.Percentiles{P50: 5, P99: 20, Max: 30},
		Strategy: "bucket", Broker: "4.3.6", Database: "sqlite",
	}
	var out strings.Builder
	a := &app{program.New(&term.Terminal{Stdout: &out, JSON: true})}
	if err := a.showLedger(l); err != nil {
		t.Fatal(err)
	}
	want := `{"orders":200,"paid":99,"cancelled":101,"early":0,"lost":0,"duplicates_injected":80,"effects_twice":0,"lateness_ms":{"p50":5,"p99":20,"max":30},"strategy":"bucket","broker":"4.3.6","database":"sqlite"}` + "\n"
	if out.String() != want {
		t.Errorf("got  %swant %s", out.String(), want)
	}
	out.Reset()
	a.JSON = false
	l.Lost = 1
	if err := a.showLedger(l); err == nil || !strings.Contains(out.String(), "lost                            1  WRONG") || !strings.Contains(out.String(), "early                           0  ok") {
		t.Errorf("got %v and %s", err, out.String())
	}
}

package naming

import "testing"

// Every send checks whether its destination is reserved.
func TestReservedAllocatesNothing(t *testing.T) {
	if n := testing.AllocsPerRun(100, func() { Reserved("delay", "orders.expire") }); n > 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

package naming

import "testing"

// Reserved must not allocate, because every send calls it.
func TestReservedAllocatesNothing(t *testing.T) {
	if n := testing.AllocsPerRun(100, func() { Reserved("delay", "orders.expire") }); n > 0 {
		t.Errorf("Reserved: got %v allocations, want 0", n)
	}
}

package loopback_test

import (
	"net"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/integration/loopback"
)

func TestPorts(t *testing.T) {
	ports, err := loopback.Ports(20)
	if err != nil {
		t.Fatal(err)
	}
	if len(ports) != 20 {
		t.Fatalf("Ports returned %d ports, want 20", len(ports))
	}
	// All listeners are open at the same time, so that the test fails if two ports are equal.
	for _, port := range ports {
		listener, err := net.Listen("tcp", loopback.Address(port))
		if err != nil {
			t.Error(err)
			continue
		}
		t.Cleanup(func() { _ = listener.Close() })
		if port >= 32768 {
			t.Errorf("got port %d, which may be used by an outgoing connection, want one below 32768", port)
		}
	}
}

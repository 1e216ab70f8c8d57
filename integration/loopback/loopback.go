// Package loopback finds ports for private servers.
package loopback

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
)

// Host is the only address that private servers listen on.
const Host = "127.0.0.1"

// Systems use ports from 32768 upwards for outgoing connections. A server that is stopped and started again must find
// its port free, so ports are chosen from a lower range.
const (
	lowest  = 12000
	highest = 32000
)

// Ports returns n different ports that are currently free. Another process may take a port before the caller uses it,
// so a caller that starts a server should retry with other ports.
func Ports(n int) ([]int, error) {
	ports := make([]int, 0, n)
	// Keep the listeners open until all ports are found, so that the ports differ.
	var held []net.Listener
	defer func() {
		for _, listener := range held {
			_ = listener.Close()
		}
	}()
	var last error
	for range 200 {
		if len(ports) == n {
			return ports, nil
		}
		port := lowest + rand.IntN(highest-lowest)
		listener, err := net.Listen("tcp", Address(port))
		if err != nil {
			last = err
			continue
		}
		held = append(held, listener)
		ports = append(ports, port)
	}
	if len(ports) == n {
		return ports, nil
	}
	return nil, errors.Join(errors.New("no free port on "+Host), last)
}

// Address returns 127.0.0.1:port.
func Address(port int) string { return net.JoinHostPort(Host, strconv.Itoa(port)) }

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

// Systems take the port of an outgoing connection from 32768 upwards. A server
// that is stopped and started again must find its port free, so ports come
// from below.
const (
	lowest  = 12000
	highest = 32000
)

// Ports returns n different ports that nobody listens on at this moment.
// Another process may take one before the caller does; who starts a server on
// it tries again with others.
func Ports(n int) ([]int, error) {
	ports := make([]int, 0, n)
	// Held until all are found, so that they differ.
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

package amqptest

import (
	"context"
	"io"
	"net"
	"sync"
)

// listen joins each socket to a connection in memory, so that the server never
// waits for a client that does not read.
func (s *Server) listen(l net.Listener) {
	for {
		socket, err := l.Accept()
		if err != nil {
			return
		}
		mem, err := s.Dial(context.Background(), "tcp", l.Addr().String())
		if err != nil {
			_ = socket.Close()
			continue
		}
		s.running.Go(func() { join(socket, mem) })
	}
}

// join copies both ways until one side ends. Bytes that the server has already
// written still reach the socket.
func join(socket, mem net.Conn) {
	var both sync.WaitGroup
	both.Go(func() {
		_, _ = io.Copy(mem, socket) // the end of either side is the end of both
		_ = mem.Close()
	})
	both.Go(func() {
		_, _ = io.Copy(socket, mem)
		_ = socket.Close()
	})
	both.Wait()
}

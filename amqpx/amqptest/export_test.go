package amqptest

// RoundTrips returns how often clients have called methods that the server answers. It includes calls with no-wait,
// although the server does not answer those.
func RoundTrips(s *Server) (n int) {
	s.do(func() {
		for m, k := range s.calls {
			if waits[m] {
				n += k
			}
		}
	})
	return n
}

var waits = map[method]bool{
	connectionStartOk: true, connectionOpen: true, connectionClose: true, channelOpen: true, channelClose: true,
	exchangeDeclare: true, exchangeDelete: true, exchangeBind: true, exchangeUnbind: true,
	queueDeclare: true, queueDelete: true, queuePurge: true, queueBind: true, queueUnbind: true,
	basicQos: true, basicConsume: true, basicCancel: true, basicGet: true, basicRecover: true, confirmSelect: true,
}

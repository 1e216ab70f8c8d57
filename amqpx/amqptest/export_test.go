package amqptest

// RoundTrips returns how many methods with an answer clients have called. It counts calls with no-wait as well,
// although the server does not answer them.
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

package lasthop

import "time"

// EarlyError is the error of a handler that knows better than the consumer that the instant of
// its message is to come: it asks for the message to be sent back for the rest.
type EarlyError struct {
	Offset time.Duration // the clock of the due instant minus this process's
}

func (e *EarlyError) Error() string { return "too early by the clock of its due instant" }

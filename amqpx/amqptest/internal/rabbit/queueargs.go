package rabbit

import "math"

// queueArg is an argument of queues that has no effect here, but may be refused.
type queueArg struct {
	key     string
	classic bool // a classic queue takes it
	quorum  bool
	check   func(a *arguments, key string)
}

// queueArgs returns the arguments that a type of queue does not take on a version, or
// whose values are checked.
func queueArgs(v Version) []queueArg {
	positive := func(a *arguments, key string) { a.number(key, 1, math.MaxInt64, 0) }
	natural := func(a *arguments, key string) { a.number(key, 0, math.MaxInt64, 0) }
	all := []queueArg{
		{"x-max-priority", true, false, nil},
		{"x-queue-mode", true, false, func(a *arguments, key string) {
			if !v.AtLeast(4, 3, 0) {
				a.oneOf(key, `"unsupported queue mode 'VALUE'"`, "default", "lazy")
			}
		}},
		{"x-queue-version", true, false, func(a *arguments, key string) {
			least := int64(1)
			if v.AtLeast(4, 3, 0) {
				least = 2
			}
			if n := a.number(key, 0, math.MaxInt64, 2); n < least || n > 2 {
				a.refusef(key, `"unsupported queue version '%d'"`, n)
			}
		}},
		{"x-queue-master-locator", true, false, nil},
		{"x-queue-leader-locator", v.AtLeast(3, 12, 0), true, func(a *arguments, key string) {
			a.oneOf(key, "invalid_queue_locator_arg", "client-local", "balanced", "random", "least-leaders")
		}},
		{"x-delivery-limit", false, true, nil},
		{"x-dead-letter-strategy", false, true, nil},
		{"x-quorum-initial-group-size", false, true, positive},
		{"x-max-in-memory-length", false, true, natural},
		{"x-max-in-memory-bytes", false, true, natural},
		{"x-max-age", false, false, nil},
		{"x-initial-cluster-size", false, false, nil},
		{"x-stream-max-segment-size-bytes", false, false, nil},
	}
	if v.AtLeast(4, 3, 0) {
		all = append(all, queueArg{"x-consumer-timeout", false, true, natural})
	}
	return all
}

// known refuses arguments that the type of a queue does not take, and then wrong values.
func (a *arguments) known(quorum bool, v Version) {
	kind := "rabbit_classic_queue"
	if quorum {
		kind = "rabbit_quorum_queue"
	}
	all := queueArgs(v)
	for _, x := range all {
		if _, ok := a.table[x.key]; ok && a.err == nil && (quorum && !x.quorum || !quorum && !x.classic) {
			a.err = precondition("invalid arg '%s' for %s of queue type %s", x.key, a.of, kind)
		}
	}
	for _, x := range all {
		if _, ok := a.table[x.key]; ok && a.err == nil && x.check != nil {
			x.check(a, x.key)
		}
	}
}

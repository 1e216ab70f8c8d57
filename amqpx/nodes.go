package amqpx

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
)

// nodes gives the URLs of the brokers in a random order, so that many clients do
// not all connect to the first one. Each is tried before one is tried again, and
// the one whose connection was lost comes last.
type nodes struct {
	all    []string
	round  []string // not tried yet
	last   string   // given last
	failed map[string]error
}

func (c Config) nodes() *nodes {
	n := &nodes{failed: map[string]error{}}
	if c.URL != "" || len(c.URLs) == 0 {
		n.all = append(n.all, c.URL)
	}
	n.all = append(n.all, c.URLs...)
	return n
}

// next is the URL to try now.
func (n *nodes) next() string {
	if len(n.round) == 0 {
		for _, i := range rand.Perm(len(n.all)) {
			if n.all[i] != n.last {
				n.round = append(n.round, n.all[i])
			}
		}
		if slices.Contains(n.all, n.last) {
			n.round = append(n.round, n.last)
		}
	}
	n.last, n.round = n.round[0], n.round[1:]
	return n.last
}

// connected begins anew: the next call of next comes when the connection is lost.
func (n *nodes) connected() {
	n.round = nil
	clear(n.failed)
}

// fail takes in why the URL that was given last was of no use, and tells it
// together with the last failures of the others.
func (n *nodes) fail(err error) error {
	n.failed[n.last] = err
	if len(n.all) == 1 {
		return err
	}
	e := &nodesError{total: len(n.all)}
	for _, u := range n.all {
		if err := n.failed[u]; err != nil {
			e.names, e.errs = append(e.names, address(u)), append(e.errs, err)
		}
	}
	return e
}

// nodesError is why there is no connection to any of several brokers.
type nodesError struct {
	total int      // brokers
	names []string // host:port of those that were tried
	errs  []error
}

func (e *nodesError) Error() string {
	texts := make([]string, len(e.errs))
	for i, err := range e.errs {
		texts[i] = err.Error()
		if !strings.Contains(texts[i], e.names[i]) {
			texts[i] = fmt.Sprintf("%s: %v", e.names[i], err)
		}
	}
	return strings.Join(texts, "; ")
}

func (e *nodesError) Unwrap() []error { return e.errs }

// permanent tells whether no broker is worth another try.
func (e *nodesError) permanent() bool {
	return len(e.errs) == e.total && !slices.ContainsFunc(e.errs, func(err error) bool { return !permanent(err) })
}

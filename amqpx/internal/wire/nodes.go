package wire

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
)

// nodes iterates over the URLs of the brokers in a random order, so that not all clients connect to the first one.
// Every URL is tried once before any of them is tried again. The URL whose connection was lost is tried last.
type nodes struct {
	all    []string
	round  []string // URLs that were not tried yet in this round
	last   string   // the URL that was returned last
	failed map[string]error
}

func newNodes(urls []string) *nodes { return &nodes{all: urls, failed: map[string]error{}} }

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

// connected starts a new round, which is used when the connection is lost.
func (n *nodes) connected() {
	n.round = nil
	clear(n.failed)
}

// fail records the error of the URL that was returned last. It returns that error together with the last errors of the
// other URLs.
func (n *nodes) fail(err error) error {
	n.failed[n.last] = err
	if len(n.all) == 1 {
		return err
	}
	e := &NodesError{total: len(n.all)}
	for _, u := range n.all {
		if err := n.failed[u]; err != nil {
			e.names, e.errs = append(e.names, Address(u)), append(e.errs, err)
		}
	}
	return e
}

// NodesError lists the errors of all brokers that were tried, when none of several could be reached.
type NodesError struct {
	total int      // number of brokers
	names []string // host:port of the brokers that were tried
	errs  []error
}

func (e *NodesError) Error() string {
	texts := make([]string, len(e.errs))
	for i, err := range e.errs {
		texts[i] = err.Error()
		if !strings.Contains(texts[i], e.names[i]) {
			texts[i] = fmt.Sprintf("%s: %v", e.names[i], err)
		}
	}
	return strings.Join(texts, "; ")
}

// Unwrap returns the errors of the brokers that were tried.
func (e *NodesError) Unwrap() []error { return e.errs }

// All reports whether every broker was tried and each of their errors satisfies f.
func (e *NodesError) All(f func(error) bool) bool {
	return len(e.errs) == e.total && !slices.ContainsFunc(e.errs, func(err error) bool { return !f(err) })
}

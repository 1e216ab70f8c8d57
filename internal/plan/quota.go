package plan

import (
	"fmt"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

// QuotaError means that a limit on the number of queues is too low for the queues that are missing.
type QuotaError struct {
	Vhost   string // empty if the limit is the cluster's
	Limit   int64
	Have    int64 // existing queues; -1 if unknown
	Missing int64 // queues that would have to be created; -1 if unknown
	Layout  int64 // all queues that the topology describes
	Err     error // the broker's refusal; nil if nothing was tried
}

func (e *QuotaError) Error() string { return e.Figures() + "; " + QuotaAdvice }

// QuotaAdvice says what to do about a *QuotaError.
const QuotaAdvice = "choose a layout with fewer queues, such as delay.bucket.layout: binary (29 queues), or have the limit raised (rabbitmqctl set_vhost_limits)"

// Figures returns how many queues are allowed and needed.
func (e *QuotaError) Figures() string {
	where := "the cluster"
	if e.Vhost != "" {
		where = fmt.Sprintf("the virtual host %q", e.Vhost)
	}
	text := fmt.Sprintf("%s allows %d queues", where, e.Limit)
	if e.Have >= 0 {
		text += fmt.Sprintf(" and has %d", e.Have)
	}
	text += fmt.Sprintf("; these settings need %d", e.Layout)
	if e.Missing >= 0 && e.Missing != e.Layout {
		text += fmt.Sprintf(", of which %d are missing", e.Missing)
	}
	return text
}

// Unwrap returns topology.ErrQuota and the broker's refusal.
func (e *QuotaError) Unwrap() []error {
	if e.Err == nil {
		return []error{topology.ErrQuota}
	}
	return []error{topology.ErrQuota, e.Err}
}

// Quota returns a *QuotaError if the virtual host's limit is too low for the queues to be created. It returns nil if
// there is no known limit.
func (p Plan) Quota() error {
	var missing, all int64
	for _, s := range p.Steps {
		if s.Kind != topology.KindQueue {
			continue
		}
		all++
		if s.Action == ActionCreate {
			missing++
		}
	}
	if p.queueLimit <= 0 || missing == 0 || p.queues+missing <= p.queueLimit {
		return nil
	}
	return &QuotaError{Vhost: p.vhost, Limit: p.queueLimit, Have: p.queues, Missing: missing, Layout: all}
}

package doctor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/topology/argument"
	"github.com/rabbitdelay/rabbitdelay/topology/naming"
	"github.com/rabbitdelay/rabbitdelay/topology/observed"
)

// checkRefuses reports a destination queue that gives messages back to the delay
// queues: the broker has 32 dead letters of a queue under way and then stops it.
func (x *examination) checkRefuses(name string, q observed.Queue) {
	most, full := bound(q)
	var what, mend string
	switch {
	case slices.Contains([]string{"down", "minority", "stopped", "crashed"}, q.State):
		what, full = "takes no messages: it is "+q.State, true
		mend = "rabbitmqctl cluster_status   # start the nodes that are down"
	case most == "":
		return
	default:
		what = "refuses more than " + most
		mend = fmt.Sprintf("%s; %s   # take the bound out of the policy; an argument needs a queue of another name. Or send through an exchange (exchange: amq.direct, routing_key: %s), whose route queue waits alone: rabbitmqadmin -V %s declare binding source=amq.direct destination=%s routing_key=%[3]s",
			x.ctl("list_policies"), x.ctl("list_operator_policies"), shellQuote(name), shellQuote(x.cfg.Vhost), shellQuote(name))
	}
	severity, waiting := SeverityWarning, int64(0)
	for other, q := range x.snap.Live.Queues {
		if _, delays := naming.DelaysOf(x.cfg.Prefix, other); delays {
			waiting += q.Leaving
		}
	}
	if full && waiting > 0 {
		severity = SeverityCritical
		what += "; " + counted(waiting, "message that is due waits", "messages that are due wait") + " in delay queues"
	}
	x.found(Finding{
		ID: "destination-refuses", Severity: severity, Objects: []string{name},
		What: fmt.Sprintf("The destination queue %s %s.", name, what),
		Why:  "After 32 refused messages a quorum delay queue stops delivering to all destinations; a classic one loses the refused messages.",
		Mend: mend,
	})
}

// bound returns the length at which a queue refuses messages, if any, and
// whether it has reached it. A quorum queue that was full refuses until it is
// down to four fifths.
func bound(q observed.Queue) (most string, full bool) {
	if !strings.HasPrefix(overflow(q), argument.RejectPublish) { // or reject-publish-dlx
		return "", false
	}
	if n, ok := lower(q.Arguments[argument.MaxLength], q.EffectivePolicy["max-length"]); ok {
		most, full = counted(n, "message", "messages"), q.Ready()*5 >= n*4
	}
	if n, ok := lower(q.Arguments[argument.MaxLengthBytes], q.EffectivePolicy["max-length-bytes"]); ok {
		most = strings.TrimPrefix(most+" or "+counted(n, "byte", "bytes"), " or ")
		full = full || q.ReadyBytes*5 >= n*4
	}
	return most, full
}

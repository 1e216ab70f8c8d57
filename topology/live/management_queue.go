package live

import (
	"context"
	"errors"
	"net/http"

	"github.com/rabbitdelay/rabbitdelay/topology/observed"
)

// queueColumns are what liveQueue reads.
const queueColumns = "name,type,durable,auto_delete,exclusive,arguments,consumers,policy,operator_policy,effective_policy_definition," +
	"messages,messages_ready,messages_unacknowledged,messages_delayed,message_bytes_ready,members,online,node,leader,state,message_stats.publish"

// Queue reads one queue; nil if there is none.
func (m *Management) Queue(ctx context.Context, name string) (*observed.Queue, error) {
	var q queueAnswer
	_, err := m.Call(ctx, http.MethodGet, m.InVhost("queues", name)+"?columns="+queueColumns, nil, &q)
	if status, ok := errors.AsType[*StatusError](err); ok && status.Code == http.StatusNotFound {
		return nil, nil
	}
	if err != nil {
		return nil, m.failed("queue "+name, err)
	}
	found := q.live()
	return &found, nil
}

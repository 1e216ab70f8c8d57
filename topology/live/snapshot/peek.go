package snapshot

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/doctor"
	"github.com/rabbitdelay/rabbitdelay/topology/observed"
)

// maxPeek bounds Source.Peek.
const maxPeek = 100

// peek looks at parked messages.
func (c *collector) peek(ctx context.Context) error {
	parked := topology.ParkedQueue(c.cfg.Prefix)
	if c.src.Peek <= 0 || c.snap.Live.Queues[parked].Messages == 0 {
		return nil
	}
	v := observed.ParseVersion(c.snap.Version)
	switch {
	case !c.managed:
		c.notef("parked messages were not read; that needs the management API")
		return nil
	case !v.Known() || v.AtLeast(4, 0, 0) && v.Before(4, 3, 0):
		c.notef("parked messages were not read: RabbitMQ %s counts each read as a delivery, and drops a message after the twentieth", c.snap.Version)
		return nil
	}
	var got []struct {
		RoutingKey string          `json:"routing_key"`
		Properties json.RawMessage `json:"properties"`
	}
	_, err := c.src.Management.Call(ctx, http.MethodPost, c.src.Management.InVhost("queues", parked)+"/get", map[string]any{
		"count": min(c.src.Peek, maxPeek), "ackmode": "ack_requeue_true", "encoding": "auto", "truncate": 1,
	}, &got)
	if err != nil {
		if ctx.Err() == nil {
			c.notef("parked messages could not be looked at: %s", oneLine(err))
		}
		return nil
	}
	for _, m := range got {
		c.snap.ParkedSamples = append(c.snap.ParkedSamples, doctor.Parked{RoutingKey: m.RoutingKey, Destination: destinationIn(m.Properties)})
	}
	return nil
}

// destinationIn reads the destination from a message's properties. The management
// API writes those and the headers as an empty list where there are none; then the
// routing key says it.
func destinationIn(properties json.RawMessage) string {
	var p struct {
		Headers json.RawMessage `json:"headers"`
	}
	var headers map[string]any
	_ = json.Unmarshal(properties, &p)
	_ = json.Unmarshal(p.Headers, &headers)
	d, _ := headers[headerDestination].(string)
	return d
}

// headerDestination is the header in which rabbitdelay says where a message goes.
const headerDestination = "rabbitdelay-destination"

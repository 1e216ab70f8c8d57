package api

import (
	"context"

	"github.com/danielgtaylor/huma/v2"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/asjson"
	"github.com/rabbitdelay/rabbitdelay/amqpx/console/internal/service"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

type requeueRequest struct {
	Queue        string   `json:"queue"                  minLength:"1"                                      maxLength:"255"                                             doc:"a dead-letter queue, or the parked queue"`
	Reasons      []string `json:"reasons,omitempty"`
	IDs          []string `json:"ids,omitempty"`
	Destinations []string `json:"destinations,omitempty" doc:"a queue, or exchange:routing-key"`
	Error        string   `json:"error,omitempty"        doc:"a part of the last error"`
	OlderThan    string   `json:"older_than,omitempty"`
	NewerThan    string   `json:"newer_than,omitempty"`
	ToQueue      string   `json:"to_queue,omitempty"     doc:"send them there instead of where they belong"`
	ToExchange   string   `json:"to_exchange,omitempty"`
	RoutingKey   string   `json:"routing_key,omitempty"`
	Rate         float64  `json:"rate,omitempty"         minimum:"0"                                        doc:"the most messages a second; 0 for no limit"`
	DryRun       bool     `json:"dry_run,omitempty"`
	Limit        int      `json:"limit,omitempty"        minimum:"0"                                        doc:"the most messages that may go; needed without dry_run"`
}

func (r requeueRequest) read() (service.Requeue, error) {
	out := service.Requeue{
		Queue: r.Queue, Limit: r.Limit, Rate: r.Rate, To: topology.Destination{Queue: r.ToQueue, Exchange: r.ToExchange, RoutingKey: r.RoutingKey},
		Filter: amqpx.DeadLetterFilter{Reasons: r.Reasons, IDs: r.IDs, Destinations: r.Destinations, Error: r.Error},
	}
	var err error
	if out.Filter.OlderThan, err = duration("body.older_than", r.OlderThan); err != nil {
		return out, err
	}
	out.Filter.NewerThan, err = duration("body.newer_than", r.NewerThan)
	return out, err
}

const tagDead = "messages"

func (a *api) dead() {
	type peeked struct {
		Queue    string           `json:"queue"`
		Messages []asjson.Message `json:"messages" nullable:"false"`
		More     int              `json:"more"     doc:"further messages that are ready"`
		Notes    []string         `json:"notes"    nullable:"false"                      doc:"what the look has disturbed"`
	}
	huma.Register(a.API, op("GET", "/queues/{queue}/messages", "peek", tagDead, "Look at the head of a dead-letter queue or of the parked queue"),
		func(ctx context.Context, in *struct {
			QueuePath

			Limit int `query:"limit" default:"20" minimum:"1" maximum:"1000"`
		},
		) (*body[peeked], error) {
			p, err := a.svc.Peek(ctx, who(ctx), in.Queue, in.Limit)
			return answer(a, peeked{in.Queue, asjson.MessagesOf(p.Messages), p.More, append([]string{}, p.Notes...)}, err)
		})
	type requeued struct {
		Report *amqpx.RequeueReport `json:"report,omitempty" doc:"of a dry run"`
		Job    *job                 `json:"job,omitempty"`
	}
	huma.Register(a.API, op("POST", "/requeue", "requeue", tagDead, "Send dead letters or parked messages back: see what would become of them by a dry run, then start a job"),
		func(ctx context.Context, in *struct{ Body requeueRequest }) (*body[requeued], error) {
			r, err := in.Body.read()
			if err != nil {
				return nil, err
			}
			if in.Body.DryRun {
				rep, err := a.svc.RequeueDryRun(ctx, who(ctx), r)
				return answer(a, requeued{Report: &rep}, err)
			}
			j, err := a.svc.Requeue(ctx, who(ctx), r)
			started := jobOf(j)
			return answer(a, requeued{Job: &started}, err)
		})
	huma.Register(a.API, op("GET", "/trace/{id}", "trace", tagDead, "What has become of a message or task, dead-letter queues included"),
		func(ctx context.Context, in *TaskPath) (*body[asjson.Trace], error) {
			t, err := a.svc.Trace(ctx, who(ctx), in.ID)
			return answer(a, asjson.TraceOf(t), err)
		})
}

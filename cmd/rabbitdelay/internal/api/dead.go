package api

import (
	"context"

	"github.com/danielgtaylor/huma/v2"

	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/asjson"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console/service"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/deadletters"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// ChosenMessages selects the messages in a queue that a request changes.
type ChosenMessages struct {
	Queue        string   `json:"queue"                  minLength:"1"                                                                                         maxLength:"255"                                                                    doc:"A dead-letter queue, or the parked queue."`
	Reasons      []string `json:"reasons,omitempty"`
	IDs          []string `json:"ids,omitempty"`
	Destinations []string `json:"destinations,omitempty" doc:"Selects messages for these destinations: queues, or exchange:routing-key."`
	Error        string   `json:"error,omitempty"        doc:"Selects messages whose last error contains this text."`
	ErrorLike    string   `json:"error_like,omitempty"   doc:"Selects messages whose last error differs from this text only in numbers, ids and quoted parts."`
	OlderThan    string   `json:"older_than,omitempty"`
	NewerThan    string   `json:"newer_than,omitempty"`
	DryRun       bool     `json:"dry_run,omitempty"`
	Limit        int      `json:"limit,omitempty"        minimum:"0"                                                                                           doc:"The maximum number of messages to send or discard. Required without dry_run."`
}

type requeueRequest struct {
	ChosenMessages

	ToQueue    string  `json:"to_queue,omitempty"    doc:"Sends all messages to this queue, instead of each to its own destination."`
	ToExchange string  `json:"to_exchange,omitempty"`
	RoutingKey string  `json:"routing_key,omitempty"`
	Rate       float64 `json:"rate,omitempty"        minimum:"0"                                                                     doc:"The maximum number of messages a second. 0 means no limit."`
}

func (c ChosenMessages) requeue() (service.Requeue, error) {
	var in reader
	out := service.Requeue{
		Queue: c.Queue, Limit: c.Limit,
		Filter: inspect.DeadLetterFilter{
			Reasons: c.Reasons, IDs: c.IDs, Destinations: c.Destinations, Error: c.Error, ErrorLike: c.ErrorLike,
			OlderThan: in.duration("body.older_than", c.OlderThan), NewerThan: in.duration("body.newer_than", c.NewerThan),
		},
	}
	return out, in.err
}

const tagDead = "messages"

func (a *api) dead() {
	type peeked struct {
		Queue    string           `json:"queue"`
		Messages []asjson.Message `json:"messages" nullable:"false"`
		More     int              `json:"more"     doc:"The number of ready messages that were not shown."`
		Notes    []string         `json:"notes"    nullable:"false"                                        doc:"What reading the messages changed in the queue."`
	}
	huma.Register(a.API, op("GET", "/queues/{queue}/messages", "peek", tagDead, "Show the first messages of a dead-letter queue or of the parked queue"),
		func(ctx context.Context, in *struct {
			QueuePath

			Limit int `query:"limit" default:"20" minimum:"1" maximum:"1000"`
		},
		) (*body[peeked], error) {
			p, err := a.svc.Peek(ctx, who(ctx), in.Queue, in.Limit)
			return answer(a, peeked{in.Queue, asjson.MessagesOf(p.Messages), p.More, append([]string{}, p.Notes...)}, err)
		})
	huma.Register(a.API, op("GET", "/queues/{queue}/errors", "group-errors", tagDead, "Group the messages of a whole dead-letter queue by error"),
		func(ctx context.Context, in *struct {
			QueuePath

			Order deadletters.GroupOrder `query:"order" enum:"newest,oldest,most" default:"newest" doc:"Which groups come first."`
			Limit int                    `query:"limit" default:"50"              minimum:"1"      maximum:"1000"                 doc:"The maximum number of groups."`
		},
		) (*body[deadletters.ErrorGroups], error) {
			g, err := a.svc.ErrorGroups(ctx, in.Queue, in.Order, in.Limit)
			return answer(a, g, err)
		})
	type requeued struct {
		Report *inspect.RequeueReport `json:"report,omitempty" doc:"Present after a dry run."`
		Job    *job                   `json:"job,omitempty"`
	}
	// change performs a dry run or starts a job.
	change := func(ctx context.Context, r service.Requeue, dryRun bool, err error) (*body[requeued], error) {
		if err != nil {
			return nil, err
		}
		if dryRun {
			rep, err := a.svc.RequeueDryRun(ctx, who(ctx), r)
			return answer(a, requeued{Report: &rep}, err)
		}
		j, err := a.svc.Requeue(ctx, who(ctx), r)
		started := jobOf(j)
		return answer(a, requeued{Job: &started}, err)
	}
	huma.Register(a.API, op("POST", "/requeue", "requeue", tagDead, "Send dead letters or parked messages back. See the result with a dry run, then start a job"),
		func(ctx context.Context, in *struct{ Body requeueRequest }) (*body[requeued], error) {
			r, err := in.Body.requeue()
			r.Rate, r.To = in.Body.Rate, topology.Destination{Queue: in.Body.ToQueue, Exchange: in.Body.ToExchange, RoutingKey: in.Body.RoutingKey}
			return change(ctx, r, in.Body.DryRun, err)
		})
	huma.Register(a.API, op("POST", "/discard", "discard", tagDead, "Remove dead letters or parked messages, and save them in a file. Count them with a dry run, then start a job"),
		func(ctx context.Context, in *struct{ Body ChosenMessages }) (*body[requeued], error) {
			r, err := in.Body.requeue()
			r.Discard = true
			return change(ctx, r, in.Body.DryRun, err)
		})
	huma.Register(a.API, op("GET", "/trace/{id}", "trace", tagDead, "Get what happened to a message or task, including its dead letters"),
		func(ctx context.Context, in *TaskPath) (*body[asjson.Trace], error) {
			t, err := a.svc.Trace(ctx, who(ctx), in.ID)
			return answer(a, asjson.TraceOf(t), err)
		})
}

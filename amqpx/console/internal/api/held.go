package api

import (
	"context"

	"github.com/danielgtaylor/huma/v2"

	"github.com/rabbitdelay/rabbitdelay/amqpx/asjson"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Destination is that of a request.
type Destination struct {
	Queue    string `json:"queue,omitempty"    maxLength:"255"`
	Exchange string `json:"exchange,omitempty" maxLength:"255" doc:"instead of a queue, with all its routing keys"`
}

func (d Destination) topology() topology.Destination {
	return topology.Destination{Queue: d.Queue, Exchange: d.Exchange}
}

const tagDestinations = "destinations"

func (a *api) held() {
	type destinations struct {
		Destinations []asjson.Held `json:"destinations" nullable:"false"`
	}
	huma.Register(a.API, op("GET", "/destinations", "list-held", tagDestinations, "List destinations whose tasks are held back: paused, or with a ceiling"),
		func(ctx context.Context, _ *struct{}) (*body[destinations], error) {
			found, err := a.svc.Destinations(ctx)
			out := destinations{Destinations: []asjson.Held{}}
			for _, d := range found {
				out.Destinations = append(out.Destinations, asjson.HeldOf(d))
			}
			return answer(a, out, err)
		})
	one := func(ctx context.Context, d topology.Destination, err error) (*body[asjson.Held], error) {
		if err != nil {
			return nil, a.problem(err)
		}
		state, err := a.svc.Destination(ctx, d)
		return answer(a, asjson.HeldOf(state), err)
	}
	huma.Register(a.API, op("POST", "/destinations/pause", "pause-destination", tagDestinations, "Keep the tasks of a destination in the table"),
		func(ctx context.Context, in *struct{ Body Destination }) (*body[asjson.Held], error) {
			d := in.Body.topology()
			return one(ctx, d, a.svc.PauseDestination(ctx, who(ctx), d))
		})
	type ceiling struct {
		Destination

		PerSecond float64 `json:"per_second"      minimum:"0" maximum:"100000"                                                                   doc:"tasks a second, such as 50 or 0.1; 0 for no ceiling"`
		Burst     int     `json:"burst,omitempty" minimum:"0" doc:"how many may go at once after a time with fewer; default a tenth, at least 1"`
	}
	huma.Register(a.API, op("POST", "/destinations/ceiling", "set-ceiling", tagDestinations, "Bound how many tasks a second come to a destination, over all relays"),
		func(ctx context.Context, in *struct{ Body ceiling }) (*body[asjson.Held], error) {
			d := in.Body.topology()
			return one(ctx, d, a.svc.SetCeiling(ctx, who(ctx), schedule.Ceiling{Queue: d.Queue, Exchange: d.Exchange, PerSecond: in.Body.PerSecond, Burst: in.Body.Burst}))
		})
	type resumed struct {
		Destination

		Spread string `json:"spread,omitempty" doc:"over which what came due in the pause is sent, such as 30m; default at once"`
	}
	huma.Register(a.API, op("POST", "/destinations/resume", "resume-destination", tagDestinations, "Send the tasks of a paused destination again"),
		func(ctx context.Context, in *struct{ Body resumed }) (*body[asjson.Held], error) {
			spread, err := duration("body.spread", in.Body.Spread)
			if err != nil {
				return nil, err
			}
			d := in.Body.topology()
			return one(ctx, d, a.svc.ResumeDestination(ctx, who(ctx), d, spread))
		})
}

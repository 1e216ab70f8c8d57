package api

import (
	"context"

	"github.com/danielgtaylor/huma/v2"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/change"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console/service"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
)

type bulkRequest struct {
	Action string   `json:"action"            enum:"cancel,delete,run,revive,reschedule,reschedule-by"`
	Filter Filter   `json:"filter"            required:"false"`
	IDs    []string `json:"ids,omitempty"     maxItems:"1000"                                                                                 doc:"Changes only tasks with one of these ids."`
	All    bool     `json:"all,omitempty"     doc:"Must be true to select all tasks, if the filter is empty and there are no ids."`
	To     string   `json:"to,omitempty"      doc:"For reschedule and revive: the new due time."`
	By     string   `json:"by,omitempty"      doc:"For reschedule-by: how much later the tasks are due, such as 2h, or earlier, such as -1d."`
	Spread string   `json:"spread,omitempty"  doc:"Spreads the new due times over this duration."`
	DryRun bool     `json:"dry_run,omitempty" doc:"Only counts, and changes nothing."`
	Count  int64    `json:"count,omitempty"   minimum:"0"                                                                                     doc:"The maximum number of tasks to change, as counted by a dry run. Required without dry_run."`
}

type bulkAnswer struct {
	DryRun   bool  `json:"dry_run"`
	Matching int64 `json:"matching"      doc:"After a dry run, the number of tasks that would be changed now. Otherwise the count of the request."`
	Job      *job  `json:"job,omitempty"`
}

func (r bulkRequest) filterAndAction() (f schedule.Filter, act change.Action, err error) {
	if r.Filter == (Filter{}) && len(r.IDs) == 0 && !r.All {
		return f, act, wrong("body.filter", "an empty filter would select all tasks; add a condition, or set all to true to select all tasks")
	}
	if f, err = r.Filter.read("body.filter"); err != nil {
		return f, act, err
	}
	f.IDs = r.IDs
	var in reader
	act.Kind, act.At = change.Kind(r.Action), in.instant("body.to", r.To)
	if r.By != "" {
		act.By = in.shift("body.by", r.By)
	}
	act.Spread = in.duration("body.spread", r.Spread)
	return f, act, in.err
}

func (a *api) bulk() {
	huma.Register(a.API, op("POST", "/tasks/bulk", "bulk", tagTasks, "Change all tasks that a filter selects. Count them with a dry run, then start a job"),
		func(ctx context.Context, in *struct{ Body bulkRequest }) (*body[bulkAnswer], error) {
			f, act, err := in.Body.filterAndAction()
			if err != nil {
				return nil, err
			}
			if in.Body.DryRun {
				n, err := a.svc.BulkCount(ctx, f, act)
				return answer(a, bulkAnswer{DryRun: true, Matching: n}, err)
			}
			j, err := a.svc.Bulk(ctx, who(ctx), f, act, in.Body.Count)
			started := jobOf(j)
			return answer(a, bulkAnswer{Matching: in.Body.Count, Job: &started}, err)
		})
	type count struct {
		Count int64 `json:"count"`
		More  bool  `json:"more"  doc:"True if there are more than up_to."`
	}
	huma.Register(a.API, op("GET", "/counts", "count-tasks", tagTasks, "Count the tasks that a filter selects, up to a limit"),
		func(ctx context.Context, in *struct {
			Filter

			UpTo int64 `query:"up_to" default:"10000" minimum:"1" maximum:"1000000"`
		},
		) (*body[count], error) {
			f, err := in.Filter.read("query")
			if err != nil {
				return nil, err
			}
			if f.Header != "" && !who(ctx).Role.May(service.RoleOperator) {
				return nil, a.problem(service.ErrForbidden)
			}
			n, more, err := a.svc.Count(ctx, f, in.UpTo)
			return answer(a, count{n, more}, err)
		})
	type bin struct {
		From  string `json:"from"  format:"date-time"`
		To    string `json:"to"    format:"date-time"`
		Count int64  `json:"count"`
	}
	type histogram struct {
		From   string `json:"from"   format:"date-time"`
		To     string `json:"to"     format:"date-time"`
		Bins   []bin  `json:"bins"   nullable:"false"`
		Before int64  `json:"before"`
		After  int64  `json:"after"`
	}
	huma.Register(a.API, op("GET", "/histogram", "histogram", tagTasks, "Count pending tasks by due time. Without from and to, intervals of growing length cover the time from the oldest overdue task to a year ahead"),
		func(ctx context.Context, in *struct {
			Queue    string `query:"queue"`
			Exchange string `query:"exchange"`
			IDPrefix string `query:"id_prefix"`
			Tag      string `query:"tag"`
			From     string `query:"from"`
			To       string `query:"to"`
			Bins     int    `query:"bins"      default:"60" minimum:"1" maximum:"240"`
		},
		) (*body[histogram], error) {
			var text reader
			from, to := text.instant("query.from", in.From), text.instant("query.to", in.To)
			if text.err != nil {
				return nil, text.err
			}
			h, err := a.svc.Histogram(ctx, schedule.Filter{Queue: in.Queue, Exchange: in.Exchange, IDPrefix: in.IDPrefix, Tag: in.Tag}, from, to, in.Bins)
			out := histogram{From: shown.Instant(h.From), To: shown.Instant(h.To), Bins: []bin{}, Before: h.Before, After: h.After}
			for _, b := range h.Bins {
				out.Bins = append(out.Bins, bin{shown.Instant(b.From), shown.Instant(b.To), b.Count})
			}
			return answer(a, out, err)
		})
}

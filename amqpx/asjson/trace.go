package asjson

import (
	"github.com/rabbitdelay/rabbitdelay/amqpx/status"
	"github.com/rabbitdelay/rabbitdelay/amqpx/trace"
	"github.com/rabbitdelay/rabbitdelay/topology/doctor"
)

// Trace is what has become of one message or task.
type Trace struct {
	ID       string           `json:"id"`
	Why      string           `json:"why"                    doc:"what has become of it, or why nothing has"`
	Found    bool             `json:"found"                  doc:"something is known of the id"`
	Task     *Task            `json:"task,omitempty"`
	Effects  []Effect         `json:"effects"                nullable:"false"`
	Records  []Record         `json:"records"                nullable:"false"`
	Lying    []Message        `json:"lying"                  nullable:"false"`
	Searched []trace.Searched `json:"searched"               nullable:"false"`
	Scopes   []string         `json:"scopes"                 nullable:"false"                                doc:"in which records were looked for"`
	Waiting  []status.Delay   `json:"delay_queues_not_empty" nullable:"false"                                doc:"any of them may have it"`
	Other    []string         `json:"destinations_not_empty" nullable:"false"                                doc:"queues that are not searched, because their consumers would wait; any of them may have it"`
	Unseen   []doctor.Unseen  `json:"unseen"                 nullable:"false"                                doc:"what could not be seen, and why"`
	Notes    []string         `json:"notes"                  nullable:"false"`
}

// TraceOf returns a trace in JSON.
func TraceOf(t trace.Trace) Trace {
	out := Trace{
		ID: t.ID, Why: t.Why, Found: t.Found(), Effects: EffectsOf(t.Effects), Records: RecordsOf(t.Records), Lying: MessagesOf(t.Lying),
		Searched: append([]trace.Searched{}, t.Searched...), Scopes: append([]string{}, t.Scopes...), Waiting: append([]status.Delay{}, t.Waiting...),
		Other: append([]string{}, t.Unsearched...), Unseen: append([]doctor.Unseen{}, t.Unseen...), Notes: append([]string{}, t.Notes...),
	}
	if t.Task != nil {
		task := TaskOf(*t.Task)
		out.Task = &task
	}
	return out
}

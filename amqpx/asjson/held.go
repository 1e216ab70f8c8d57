package asjson

import "github.com/rabbitdelay/rabbitdelay/amqpx/schedule"

// Held is a destination whose tasks are held back: paused, or with a ceiling.
type Held struct {
	Queue       string  `json:"queue,omitempty"`
	Exchange    string  `json:"exchange,omitempty"     doc:"with all its routing keys"`
	PausedAt    string  `json:"paused_at,omitempty"    format:"date-time"                                                                doc:"absent if it is not paused"`
	PausedBy    string  `json:"paused_by,omitempty"`
	PerSecond   float64 `json:"per_second,omitempty"   doc:"the ceiling; absent without one"`
	Burst       int     `json:"burst,omitempty"        doc:"how many may go at once"`
	SpreadUntil string  `json:"spread_until,omitempty" format:"date-time"                                                                doc:"until then what came due in a pause is sent"`
	Waiting     int64   `json:"waiting"                doc:"tasks that are due and wait for this, at most 100000"`
	Busy        bool    `json:"busy"                   doc:"a relay uses the ceiling to the full, so that waiting is no sign of trouble"`
}

// HeldOf returns a destination in JSON.
func HeldOf(d schedule.DestinationState) Held {
	return Held{
		Queue: d.Queue, Exchange: d.Exchange, PausedAt: Instant(d.PausedAt), PausedBy: d.PausedBy,
		PerSecond: d.PerSecond, Burst: d.Burst, SpreadUntil: Instant(d.SpreadUntil), Waiting: d.Waiting, Busy: d.Busy,
	}
}

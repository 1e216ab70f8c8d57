package asjson

import (
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/shown"
)

// Recurring is a recurring task.
type Recurring struct {
	Name  string `json:"name"`
	State string `json:"state" enum:"active,paused,ended,wrong"`
	RecurringSpec

	Next      []string `json:"next"                 nullable:"false"            doc:"the next due instants, jitter included"`
	Skipped   string   `json:"skipped,omitempty"    format:"date-time"          doc:"the last occurrence that was left out"`
	LastError string   `json:"last_error,omitempty" doc:"what is wrong"`
	Origin    string   `json:"origin,omitempty"     doc:"config: a file has it"`
	Version   int64    `json:"version"`
	Created   string   `json:"created"              format:"date-time"`
	Updated   string   `json:"updated"              format:"date-time"`
}

// RecurringSpec is the part of it that a caller gives.
type RecurringSpec struct {
	Cron         string `json:"cron,omitempty"          doc:"five fields, or six with seconds in front, or @daily; or every"`
	TimeZone     string `json:"time_zone,omitempty"     doc:"of cron, such as Europe/Berlin; default UTC"`
	Every        string `json:"every,omitempty"         doc:"an interval instead of cron, such as 15m"`
	Start        string `json:"start,omitempty"         doc:"the first instant that may be an occurrence"`
	End          string `json:"end,omitempty"           doc:"the first that may not"`
	Jitter       string `json:"jitter,omitempty"`
	Misfire      string `json:"misfire,omitempty"       enum:"skip,once,all"                                                 doc:"default once"`
	MisfireLimit int    `json:"misfire_limit,omitempty" minimum:"0"`
	Overlap      string `json:"overlap,omitempty"       enum:"allow,skip"                                                    doc:"default allow"`

	Content
}

// RecurringOf returns a recurring task in JSON, with up to n of its next instants.
func RecurringOf(r schedule.Recurring, now time.Time, n int) Recurring {
	out := Recurring{
		Name: r.Name, State: string(r.State(now)), RecurringSpec: specOf(r), Skipped: Instant(r.SkippedAt), LastError: r.LastError, Origin: r.Origin,
		Version: r.Version, Created: shown.Instant(r.CreatedAt), Updated: shown.Instant(r.UpdatedAt),
	}
	out.Next = listOf(r.Upcoming(now, n), func(o schedule.Occurrence) string { return shown.Instant(o.DeliverAt) })
	return out
}

func specOf(r schedule.Recurring) RecurringSpec {
	out := RecurringSpec{
		Cron: r.Cron, Every: Duration(r.Every), Start: Instant(r.Start), End: Instant(r.End), Jitter: Duration(r.Jitter),
		Misfire: string(r.Misfire), Overlap: string(r.Overlap), Content: contentOf(r.Task),
	}
	if r.Cron != "" {
		out.TimeZone = r.TimeZone
	}
	if r.Misfire == schedule.MisfireAll {
		out.MisfireLimit = r.MisfireLimit
	}
	return out
}

package console

import (
	"context"
	"database/sql"

	"github.com/rabbitdelay/rabbitdelay/amqpx/console/internal/service"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

// ErrNotRecorded is wrapped by errors of Audit.Record that come before anything is done.
var ErrNotRecorded = service.ErrNotRecorded

// Audit records who did what outside of a Console, such as by a command or a script. Consoles
// on the same database show it with what they record themselves, and delete it after
// Config.KeepAudit.
type Audit struct{ to *service.Recorder }

// NewAudit returns the audit in the database of a schedule.Store.
func NewAudit(db *sql.DB) *Audit { return &Audit{service.NewRecorder(db)} }

// AuditEntry is what is about to be done.
type AuditEntry struct {
	Who    string // such as a user and a host; up to 255 bytes
	Action string // such as requeue; up to 64 bytes
	Target string // a queue, a name; empty for a filter
	Detail string // such as the filter; without bodies and values of headers, which viewers may not see
}

// Record records an entry, calls do, and adds to the entry what do returns: the outcome, in a
// line, and an error. If the entry cannot be written, nothing is done, and the error wraps
// ErrNotRecorded. An entry without an outcome is one of a process that was killed.
func (a *Audit) Record(ctx context.Context, e AuditEntry, do func(*AuditRecord) (outcome string, err error)) error {
	return a.to.Record(ctx, e.Who, service.Entry{Action: e.Action, Target: e.Target, Detail: e.Detail}, func(id string) (string, error) {
		return do(&AuditRecord{a.to, id})
	})
}

// AuditRecord is an entry whose change is under way.
type AuditRecord struct {
	to *service.Recorder
	id string
}

// Changed adds tasks that were changed to the entry, so that it is among those of each task. Its
// arguments are those of schedule.BulkOptions.Record.
func (r *AuditRecord) Changed(ctx context.Context, tx schedule.Executor, ids []any) error {
	return r.to.Changed(ctx, sqldb.On(tx), r.id, ids)
}

// DescribeDeadLetters returns a filter in words for AuditEntry.Detail, without the value of a
// header; empty for all.
func DescribeDeadLetters(f inspect.DeadLetterFilter) string { return service.DescribeDead(f, false) }

// DescribeTasks returns a filter in words for AuditEntry.Detail, without the value of a header;
// "all" for all.
func DescribeTasks(f schedule.Filter) string { return service.DescribeTasks(f, false) }

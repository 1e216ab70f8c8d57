-- What the handler of one queue has done about a task. Tasks to an exchange have a
-- row for each queue that gets them; tasks to a queue only where attempts are
-- recorded before they run. Instants are milliseconds since the Unix epoch.
CREATE TABLE IF NOT EXISTS rabbitdelay_effects (
  task_id     TEXT    NOT NULL,
  version     INTEGER NOT NULL, -- the task's
  due_at      INTEGER NOT NULL, -- the task's: an id can be used again after its task was purged
  queue       TEXT    NOT NULL, -- whose handler it is
  done_at     INTEGER, -- when the effect was committed, NULL before
  attempts    INTEGER NOT NULL DEFAULT 0, -- that were recorded before they ran
  lease_token TEXT    NOT NULL DEFAULT '', -- of the attempt that runs, or ended without an outcome
  lease_until INTEGER NOT NULL DEFAULT 0, -- until then nobody else may begin
  updated_at  INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)),
  PRIMARY KEY (task_id, version, due_at, queue)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS rabbitdelay_effects_updated ON rabbitdelay_effects (updated_at);

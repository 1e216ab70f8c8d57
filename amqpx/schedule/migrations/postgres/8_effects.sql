-- What the handler of one queue has done about a task. Tasks to an exchange have a
-- row for each queue that gets them; tasks to a queue only where attempts are
-- recorded before they run. Instants are milliseconds since the Unix epoch.
CREATE TABLE IF NOT EXISTS rabbitdelay_effects (
  task_id     text COLLATE "C" NOT NULL,
  version     bigint           NOT NULL, -- the task's
  due_at      bigint           NOT NULL, -- the task's: an id can be used again after its task was purged
  queue       text COLLATE "C" NOT NULL, -- whose handler it is
  done_at     bigint, -- when the effect was committed, NULL before
  attempts    integer          NOT NULL DEFAULT 0, -- that were recorded before they ran
  lease_token text             NOT NULL DEFAULT '', -- of the attempt that runs, or ended without an outcome
  lease_until bigint           NOT NULL DEFAULT 0, -- until then nobody else may begin
  updated_at  bigint           NOT NULL DEFAULT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint),
  PRIMARY KEY (task_id, version, due_at, queue)
);
CREATE INDEX IF NOT EXISTS rabbitdelay_effects_updated ON rabbitdelay_effects (updated_at);

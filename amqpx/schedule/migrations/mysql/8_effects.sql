-- What the handler of one queue has done about a task. Tasks to an exchange have a
-- row for each queue that gets them; tasks to a queue only where attempts are
-- recorded before they run. Instants are milliseconds since the Unix epoch.
CREATE TABLE IF NOT EXISTS rabbitdelay_effects (
  task_id     VARCHAR(255) NOT NULL,
  version     BIGINT       NOT NULL, -- the task's
  due_at      BIGINT       NOT NULL, -- the task's: an id can be used again after its task was purged
  queue       VARCHAR(255) NOT NULL, -- whose handler it is
  done_at     BIGINT, -- when the effect was committed, NULL before
  attempts    INT          NOT NULL DEFAULT 0, -- that were recorded before they ran
  lease_token VARCHAR(64)  NOT NULL DEFAULT '', -- of the attempt that runs, or ended without an outcome
  lease_until BIGINT       NOT NULL DEFAULT 0, -- until then nobody else may begin
  updated_at  BIGINT       NOT NULL DEFAULT (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000),
  PRIMARY KEY (task_id, version, due_at, queue),
  KEY rabbitdelay_effects_updated (updated_at)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

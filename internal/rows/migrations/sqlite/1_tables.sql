-- Instants are milliseconds since the Unix epoch.
-- Types are checked column by column, not by STRICT, which SQLite has since 3.37: a
-- file with such a table cannot be opened by an earlier one at all. A check of its
-- own for each column keeps a row that got past it from being in the way of changes
-- of other columns.
CREATE TABLE IF NOT EXISTS rabbitdelay_tasks (
  id            TEXT    NOT NULL PRIMARY KEY CHECK (typeof(id) = 'text'),
  queue         TEXT    NOT NULL DEFAULT '' CHECK (typeof(queue) = 'text'), -- the destination: a queue,
  exchange      TEXT    NOT NULL DEFAULT '' CHECK (typeof(exchange) = 'text'), -- or an exchange
  routing_key   TEXT    NOT NULL DEFAULT '' CHECK (typeof(routing_key) = 'text'), -- and a routing key
  due_at        INTEGER NOT NULL CHECK (typeof(due_at) = 'integer'),
  version       INTEGER NOT NULL DEFAULT 1 CHECK (typeof(version) = 'integer'),
  status        TEXT    NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'running', 'done', 'cancelled', 'expired', 'failed')),
  body          BLOB    NOT NULL DEFAULT '' CHECK (typeof(body) IN ('blob', 'text')),
  content_type  TEXT    NOT NULL DEFAULT '' CHECK (typeof(content_type) = 'text'),
  type          TEXT    NOT NULL DEFAULT '' CHECK (typeof(type) = 'text'),
  correlation_id TEXT   NOT NULL DEFAULT '' CHECK (typeof(correlation_id) = 'text'),
  priority      INTEGER NOT NULL DEFAULT 0 CHECK (typeof(priority) = 'integer' AND priority BETWEEN 0 AND 255),
  expires_after INTEGER  CHECK (typeof(expires_after) IN ('integer', 'null') AND expires_after >= 1), -- milliseconds after due_at; NULL: never
  unique_key    TEXT CHECK (typeof(unique_key) IN ('text', 'null')), -- of which at most one task is pending; NULL: none
  headers       TEXT CHECK (typeof(headers) IN ('text', 'null')), -- a JSON object of strings
  created_at    INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)) CHECK (typeof(created_at) = 'integer'),
  updated_at    INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)) CHECK (typeof(updated_at) = 'integer'),
  finished_at   INTEGER CHECK (typeof(finished_at) IN ('integer', 'null')), -- when it was done, cancelled, expired or failed
  attempts      INTEGER NOT NULL DEFAULT 0 CHECK (typeof(attempts) = 'integer'), -- failed attempts of the handler
  last_error    TEXT CHECK (typeof(last_error) IN ('text', 'null')),
  sent_at       INTEGER CHECK (typeof(sent_at) IN ('integer', 'null')), -- last confirmed publish of this version
  sends         INTEGER NOT NULL DEFAULT 0 CHECK (typeof(sends) = 'integer'), -- confirmed publishes of this version
  send_failures INTEGER NOT NULL DEFAULT 0 CHECK (typeof(send_failures) = 'integer'), -- since the last confirmed one
  resend_at     INTEGER CHECK (typeof(resend_at) IN ('integer', 'null')), -- NULL: to be sent; else when the sweeper sends it again
  claimed_until INTEGER NOT NULL DEFAULT 0 CHECK (typeof(claimed_until) = 'integer'), -- a relay's lease
  -- What the library refuses, refused from everybody. An instant that looks like
  -- seconds is taken for that mistake, which would be due at once.
  CONSTRAINT rabbitdelay_tasks_id_of_1_to_255_bytes CHECK (length(CAST(id AS BLOB)) BETWEEN 1 AND 255),
  CONSTRAINT rabbitdelay_tasks_id_without_space_at_end CHECK (id NOT LIKE '% '),
  CONSTRAINT rabbitdelay_tasks_unique_key_of_1_to_255_bytes CHECK (length(CAST(unique_key AS BLOB)) BETWEEN 1 AND 255 AND unique_key NOT LIKE '% '),
  CONSTRAINT rabbitdelay_tasks_names_up_to_255_bytes CHECK (length(CAST(queue AS BLOB)) <= 255 AND length(CAST(exchange AS BLOB)) <= 255 AND length(CAST(routing_key AS BLOB)) <= 255 AND length(CAST(content_type AS BLOB)) <= 255 AND length(CAST(type AS BLOB)) <= 255 AND length(CAST(correlation_id AS BLOB)) <= 255),
  CONSTRAINT rabbitdelay_tasks_one_destination CHECK ((queue <> '') <> (exchange <> '') AND (routing_key = '' OR exchange <> '')),
  CONSTRAINT rabbitdelay_tasks_due_at_in_milliseconds CHECK (due_at BETWEEN 0 AND 253402300799999 AND due_at NOT BETWEEN 1000000000 AND 99999999999),
  CONSTRAINT rabbitdelay_tasks_counts CHECK (version >= 1 AND attempts >= 0 AND sends >= 0 AND send_failures >= 0),
  CONSTRAINT rabbitdelay_tasks_finished_at_when_finished CHECK (status IN ('pending', 'running') OR finished_at IS NOT NULL),
  -- Without JSON's functions, which not every SQLite before 3.38 has.
  CONSTRAINT rabbitdelay_tasks_headers_a_json_object CHECK (trim(headers, ' ' || char(9, 10, 13)) GLOB '{*}')
);

CREATE INDEX IF NOT EXISTS rabbitdelay_tasks_claim ON rabbitdelay_tasks (queue, exchange, due_at) WHERE status = 'pending' AND resend_at IS NULL;
CREATE INDEX IF NOT EXISTS rabbitdelay_tasks_resend ON rabbitdelay_tasks (queue, exchange, resend_at) WHERE status = 'pending' AND resend_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS rabbitdelay_tasks_queue ON rabbitdelay_tasks (queue, exchange, status, due_at, id);
CREATE INDEX IF NOT EXISTS rabbitdelay_tasks_status ON rabbitdelay_tasks (status, due_at, id);
CREATE INDEX IF NOT EXISTS rabbitdelay_tasks_finished ON rabbitdelay_tasks (status, finished_at) WHERE finished_at IS NOT NULL;

-- The first holds a unique key to one pending task; the second finds those that were done.
CREATE UNIQUE INDEX IF NOT EXISTS rabbitdelay_tasks_pending_key ON rabbitdelay_tasks (unique_key) WHERE status = 'pending' AND unique_key IS NOT NULL;
CREATE INDEX IF NOT EXISTS rabbitdelay_tasks_unique_key ON rabbitdelay_tasks (unique_key, status, finished_at) WHERE unique_key IS NOT NULL;

-- Names by which tasks are found, any number of them for each task.
CREATE TABLE IF NOT EXISTS rabbitdelay_task_tags (
  tag     TEXT NOT NULL,
  task_id TEXT NOT NULL,
  PRIMARY KEY (tag, task_id)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS rabbitdelay_task_tags_task ON rabbitdelay_task_tags (task_id);
-- Not a foreign key, which SQLite heeds only on connections that ask for it.
CREATE TRIGGER IF NOT EXISTS rabbitdelay_tasks_untag AFTER DELETE ON rabbitdelay_tasks
  BEGIN DELETE FROM rabbitdelay_task_tags WHERE task_id = OLD.id; END;

-- Recurring tasks. Instants are milliseconds since the Unix epoch.
CREATE TABLE IF NOT EXISTS rabbitdelay_schedules (
  name            TEXT    NOT NULL PRIMARY KEY CHECK (typeof(name) = 'text' AND name <> '' AND length(CAST(name AS BLOB)) <= 200 AND instr(name, '@') = 0),
  cron            TEXT    NOT NULL DEFAULT '' CHECK (typeof(cron) = 'text'), -- when: a cron expression
  time_zone       TEXT    NOT NULL DEFAULT 'UTC' CHECK (typeof(time_zone) = 'text'), -- in an IANA time zone,
  every_ms        INTEGER NOT NULL DEFAULT 0 CHECK (typeof(every_ms) = 'integer' AND every_ms >= 0), -- or an interval
  starts_at       INTEGER CHECK (typeof(starts_at) IN ('integer', 'null')), -- the first instant that may be an occurrence
  ends_at         INTEGER CHECK (typeof(ends_at) IN ('integer', 'null')), -- the first that may not
  jitter_ms       INTEGER NOT NULL DEFAULT 0 CHECK (typeof(jitter_ms) = 'integer' AND jitter_ms >= 0),
  misfire         TEXT    NOT NULL DEFAULT 'once' CHECK (misfire IN ('skip', 'once', 'all')),
  misfire_limit   INTEGER NOT NULL DEFAULT 100 CHECK (typeof(misfire_limit) = 'integer' AND misfire_limit >= 1),
  overlap         TEXT    NOT NULL DEFAULT 'allow' CHECK (overlap IN ('allow', 'skip')),
  queue           TEXT    NOT NULL DEFAULT '' CHECK (typeof(queue) = 'text'), -- what: as in rabbitdelay_tasks
  exchange        TEXT    NOT NULL DEFAULT '' CHECK (typeof(exchange) = 'text'),
  routing_key     TEXT    NOT NULL DEFAULT '' CHECK (typeof(routing_key) = 'text'),
  body            BLOB    NOT NULL DEFAULT '',
  content_type    TEXT    NOT NULL DEFAULT '' CHECK (typeof(content_type) = 'text'),
  type            TEXT    NOT NULL DEFAULT '' CHECK (typeof(type) = 'text'),
  correlation_id  TEXT    NOT NULL DEFAULT '' CHECK (typeof(correlation_id) = 'text'),
  priority        INTEGER NOT NULL DEFAULT 0 CHECK (typeof(priority) = 'integer' AND priority BETWEEN 0 AND 255),
  expires_after   INTEGER CHECK (typeof(expires_after) IN ('integer', 'null') AND expires_after >= 1), -- milliseconds after the occurrence is due; NULL: never
  headers         TEXT CHECK (typeof(headers) IN ('text', 'null')), -- a JSON object of strings
  tags            TEXT CHECK (typeof(tags) IN ('text', 'null')), -- a JSON array of strings
  paused          INTEGER NOT NULL DEFAULT 0 CHECK (paused IN (0, 1)),
  origin          TEXT    NOT NULL DEFAULT '' CHECK (typeof(origin) = 'text'), -- who wrote it
  version         INTEGER NOT NULL DEFAULT 1 CHECK (typeof(version) = 'integer' AND version >= 1), -- every change raises it
  created_at      INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)) CHECK (typeof(created_at) = 'integer'),
  updated_at      INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)) CHECK (typeof(updated_at) = 'integer'),
  planned_version INTEGER NOT NULL DEFAULT 0 CHECK (typeof(planned_version) = 'integer'), -- the version that the relays go by
  plan_at         INTEGER NOT NULL DEFAULT 0 CHECK (typeof(plan_at) = 'integer'), -- when a relay looks at the row next
  next_at         INTEGER CHECK (typeof(next_at) IN ('integer', 'null')), -- the next occurrence that is no task yet
  last_at         INTEGER CHECK (typeof(last_at) IN ('integer', 'null')), -- the last that became one
  skipped_at      INTEGER CHECK (typeof(skipped_at) IN ('integer', 'null')), -- the last that was left out
  last_error      TEXT CHECK (typeof(last_error) IN ('text', 'null')), -- why there are no more occurrences
  CHECK ((queue <> '') <> (exchange <> '')),
  CHECK ((cron <> '') <> (every_ms > 0))
);

CREATE INDEX IF NOT EXISTS rabbitdelay_schedules_plan ON rabbitdelay_schedules (plan_at);

-- What the handler of one queue has done about a task. Tasks to an exchange have a
-- row for each queue that gets them; tasks to a queue only where attempts are
-- recorded before they run. Instants are milliseconds since the Unix epoch.
CREATE TABLE IF NOT EXISTS rabbitdelay_effects (
  task_id     TEXT    NOT NULL,
  created_at  INTEGER NOT NULL, -- the task's: an id can be used again after its task was deleted
  version     INTEGER NOT NULL, -- the task's
  queue       TEXT    NOT NULL, -- whose handler it is
  done_at     INTEGER, -- when the effect was committed, NULL before
  attempts    INTEGER NOT NULL DEFAULT 0, -- that were recorded before they ran
  lease_token TEXT    NOT NULL DEFAULT '', -- of the attempt that runs, or ended without an outcome
  lease_until INTEGER NOT NULL DEFAULT 0, -- until then nobody else may begin
  updated_at  INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)),
  PRIMARY KEY (task_id, created_at, version, queue)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS rabbitdelay_effects_updated ON rabbitdelay_effects (updated_at);

-- The relays that run: each renews its row and deletes it when it ends. What is
-- old is of one that died. Instants are milliseconds since the Unix epoch.
CREATE TABLE IF NOT EXISTS rabbitdelay_relays (
  id         TEXT    NOT NULL PRIMARY KEY,
  name       TEXT    NOT NULL, -- host:process
  version    TEXT    NOT NULL DEFAULT '', -- of rabbitdelay
  started_at INTEGER NOT NULL,
  seen_at    INTEGER NOT NULL
) WITHOUT ROWID;

-- Destinations whose tasks are held back: paused, or sent at most so often. A
-- destination is a queue, or an exchange with all its routing keys.
CREATE TABLE IF NOT EXISTS rabbitdelay_destinations (
  queue           TEXT    NOT NULL DEFAULT '' CHECK (typeof(queue) = 'text'),
  exchange        TEXT    NOT NULL DEFAULT '' CHECK (typeof(exchange) = 'text'),
  paused_at       INTEGER CHECK (typeof(paused_at) IN ('integer', 'null')), -- milliseconds since the Unix epoch; NULL: not paused
  paused_by       TEXT    NOT NULL DEFAULT '',
  per_second      REAL    NOT NULL DEFAULT 0 CHECK (typeof(per_second) = 'real' AND per_second >= 0), -- the rate limit; 0: none
  burst           INTEGER NOT NULL DEFAULT 1 CHECK (typeof(burst) = 'integer' AND burst >= 1), -- how many may be sent at once
  free_at         INTEGER NOT NULL DEFAULT 0 CHECK (typeof(free_at) = 'integer'), -- nanoseconds: when the next one is due at that rate
  spread_due      INTEGER NOT NULL DEFAULT 0 CHECK (typeof(spread_due) = 'integer'), -- after a pause: what was due by then
  spread_until    INTEGER NOT NULL DEFAULT 0 CHECK (typeof(spread_until) = 'integer'), -- is sent until then,
  spread_rate     REAL    NOT NULL DEFAULT 0, -- so many a second
  spread_free     INTEGER NOT NULL DEFAULT 0 CHECK (typeof(spread_free) = 'integer'), -- nanoseconds, as free_at
  file_per_second REAL CHECK (typeof(file_per_second) IN ('real', 'null')), -- the rate limit that a relay's configuration wrote last; NULL: none did
  file_burst      INTEGER NOT NULL DEFAULT 0 CHECK (typeof(file_burst) = 'integer'),
  PRIMARY KEY (queue, exchange),
  CONSTRAINT rabbitdelay_destinations_one CHECK ((queue <> '') <> (exchange <> ''))
) WITHOUT ROWID;

-- Who changed what with the console or its API, and the jobs among that: a bulk
-- change, a requeue, a retirement. Instants are milliseconds since the Unix epoch.
CREATE TABLE IF NOT EXISTS rabbitdelay_audit (
  id          TEXT    NOT NULL PRIMARY KEY, -- in the order of time
  at          INTEGER NOT NULL,
  who         TEXT    NOT NULL,
  action      TEXT    NOT NULL,
  target      TEXT    NOT NULL DEFAULT '', -- a task's id, a queue, a name
  detail      TEXT    NOT NULL DEFAULT '',
  error       TEXT    NOT NULL DEFAULT '', -- why it was not done
  state       TEXT    NOT NULL DEFAULT '', -- of a job: running, done, failed, interrupted or stopped
  total       INTEGER NOT NULL DEFAULT 0,
  done        INTEGER NOT NULL DEFAULT 0,
  result      TEXT    NOT NULL DEFAULT '',
  request     TEXT    NOT NULL DEFAULT '', -- what a job does, as JSON
  place       TEXT    NOT NULL DEFAULT '', -- behind which it goes on, with the tasks to come back to
  owner       TEXT    NOT NULL DEFAULT '', -- the process that runs it
  alive_at    INTEGER NOT NULL DEFAULT 0, -- when that was last heard of
  finished_at INTEGER
);
CREATE INDEX IF NOT EXISTS rabbitdelay_audit_target ON rabbitdelay_audit (target, id);
CREATE INDEX IF NOT EXISTS rabbitdelay_audit_jobs ON rabbitdelay_audit (state, id);

-- The tasks that each bulk change has changed.
CREATE TABLE IF NOT EXISTS rabbitdelay_audit_tasks (
  audit_id TEXT NOT NULL,
  task_id  TEXT NOT NULL,
  PRIMARY KEY (audit_id, task_id)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS rabbitdelay_audit_tasks_task ON rabbitdelay_audit_tasks (task_id, audit_id);

-- How tasks ended: by minute for an hour, by ten minutes for a day, by hour for a week.
-- The consoles write each row once, from the tasks themselves, and delete the old ones.
CREATE TABLE IF NOT EXISTS rabbitdelay_history (
  width_ms  INTEGER NOT NULL, -- how long the span is
  begins_at INTEGER NOT NULL, -- milliseconds since the Unix epoch
  done      INTEGER NOT NULL,
  failed    INTEGER NOT NULL,
  retries   INTEGER NOT NULL, -- attempts of these tasks after their first
  late      TEXT    NOT NULL, -- a JSON array: how many of the done ones were how late
  PRIMARY KEY (width_ms, begins_at)
) WITHOUT ROWID;

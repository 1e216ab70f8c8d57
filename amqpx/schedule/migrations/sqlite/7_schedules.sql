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

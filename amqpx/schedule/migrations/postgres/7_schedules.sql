-- Recurring tasks. Instants are milliseconds since the Unix epoch.
CREATE TABLE IF NOT EXISTS rabbitdelay_schedules (
  name            text COLLATE "C" NOT NULL PRIMARY KEY CHECK (name <> '' AND octet_length(name) <= 200 AND position('@' IN name) = 0),
  cron            text             NOT NULL DEFAULT '', -- when: a cron expression
  time_zone       text             NOT NULL DEFAULT 'UTC', -- in an IANA time zone,
  every_ms        bigint           NOT NULL DEFAULT 0 CHECK (every_ms >= 0), -- or an interval
  starts_at       bigint, -- the first instant that may be an occurrence
  ends_at         bigint, -- the first that may not
  jitter_ms       bigint           NOT NULL DEFAULT 0 CHECK (jitter_ms >= 0),
  misfire         text             NOT NULL DEFAULT 'once' CHECK (misfire IN ('skip', 'once', 'all')),
  misfire_limit   integer          NOT NULL DEFAULT 100 CHECK (misfire_limit >= 1),
  overlap         text             NOT NULL DEFAULT 'allow' CHECK (overlap IN ('allow', 'skip')),
  queue           text COLLATE "C" NOT NULL DEFAULT '', -- what: as in rabbitdelay_tasks
  exchange        text COLLATE "C" NOT NULL DEFAULT '',
  routing_key     text COLLATE "C" NOT NULL DEFAULT '',
  body            bytea            NOT NULL DEFAULT '',
  content_type    text             NOT NULL DEFAULT '',
  type            text             NOT NULL DEFAULT '',
  correlation_id  text             NOT NULL DEFAULT '',
  priority        smallint         NOT NULL DEFAULT 0 CHECK (priority BETWEEN 0 AND 255),
  expires_after   bigint           CHECK (expires_after >= 1), -- milliseconds after the occurrence is due; NULL: never
  headers         text, -- a JSON object of strings
  tags            text, -- a JSON array of strings
  paused          smallint         NOT NULL DEFAULT 0 CHECK (paused IN (0, 1)),
  origin          text             NOT NULL DEFAULT '', -- who wrote it
  version         bigint           NOT NULL DEFAULT 1 CHECK (version >= 1), -- every change raises it
  created_at      bigint           NOT NULL DEFAULT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint),
  updated_at      bigint           NOT NULL DEFAULT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint),
  planned_version bigint           NOT NULL DEFAULT 0, -- the version that the relays go by
  plan_at         bigint           NOT NULL DEFAULT 0, -- when a relay looks at the row next
  next_at         bigint, -- the next occurrence that is no task yet
  last_at         bigint, -- the last that became one
  skipped_at      bigint, -- the last that was left out
  last_error      text, -- why there are no more occurrences
  CHECK ((queue <> '') <> (exchange <> '')),
  CHECK ((cron <> '') <> (every_ms > 0))
);

CREATE INDEX IF NOT EXISTS rabbitdelay_schedules_plan ON rabbitdelay_schedules (plan_at);

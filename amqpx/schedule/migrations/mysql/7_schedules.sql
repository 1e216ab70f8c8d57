-- Recurring tasks. Instants are milliseconds since the Unix epoch.
CREATE TABLE IF NOT EXISTS rabbitdelay_schedules (
  name            VARCHAR(200) NOT NULL PRIMARY KEY CHECK (name <> '' AND LENGTH(name) <= 200 AND LOCATE('@', name) = 0),
  cron            VARCHAR(255) NOT NULL DEFAULT '', -- when: a cron expression
  time_zone       VARCHAR(64)  NOT NULL DEFAULT 'UTC', -- in an IANA time zone,
  every_ms        BIGINT       NOT NULL DEFAULT 0 CHECK (every_ms >= 0), -- or an interval
  starts_at       BIGINT, -- the first instant that may be an occurrence
  ends_at         BIGINT, -- the first that may not
  jitter_ms       BIGINT       NOT NULL DEFAULT 0 CHECK (jitter_ms >= 0),
  misfire         VARCHAR(16)  NOT NULL DEFAULT 'once' CHECK (misfire IN ('skip', 'once', 'all')),
  misfire_limit   INT          NOT NULL DEFAULT 100 CHECK (misfire_limit >= 1),
  overlap         VARCHAR(16)  NOT NULL DEFAULT 'allow' CHECK (overlap IN ('allow', 'skip')),
  queue           VARCHAR(255) NOT NULL DEFAULT '', -- what: as in rabbitdelay_tasks
  exchange        VARCHAR(255) NOT NULL DEFAULT '',
  routing_key     VARCHAR(255) NOT NULL DEFAULT '',
  body            LONGBLOB     NOT NULL DEFAULT (''),
  content_type    VARCHAR(255) NOT NULL DEFAULT '',
  type            VARCHAR(255) NOT NULL DEFAULT '',
  correlation_id  VARCHAR(255) NOT NULL DEFAULT '',
  priority        SMALLINT     NOT NULL DEFAULT 0 CHECK (priority BETWEEN 0 AND 255),
  expires_after   BIGINT       CHECK (expires_after >= 1), -- milliseconds after the occurrence is due; NULL: never
  headers         LONGTEXT, -- a JSON object of strings
  tags            LONGTEXT, -- a JSON array of strings
  paused          SMALLINT     NOT NULL DEFAULT 0 CHECK (paused IN (0, 1)),
  origin          VARCHAR(64)  NOT NULL DEFAULT '', -- who wrote it
  version         BIGINT       NOT NULL DEFAULT 1 CHECK (version >= 1), -- every change raises it
  created_at      BIGINT       NOT NULL DEFAULT (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000),
  updated_at      BIGINT       NOT NULL DEFAULT (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000),
  planned_version BIGINT       NOT NULL DEFAULT 0, -- the version that the relays go by
  plan_at         BIGINT       NOT NULL DEFAULT 0, -- when a relay looks at the row next
  next_at         BIGINT, -- the next occurrence that is no task yet
  last_at         BIGINT, -- the last that became one
  skipped_at      BIGINT, -- the last that was left out
  last_error      TEXT, -- why there are no more occurrences
  CHECK ((queue <> '') <> (exchange <> '')),
  CHECK ((cron <> '') <> (every_ms > 0)),
  KEY rabbitdelay_schedules_plan (plan_at)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

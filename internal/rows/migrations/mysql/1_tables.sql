-- Instants are milliseconds since the Unix epoch. They come from UTC_TIMESTAMP,
-- because UNIX_TIMESTAMP of a local time is an hour wrong in one of the two hours
-- that look alike when daylight saving time ends.
CREATE TABLE IF NOT EXISTS rabbitdelay_tasks (
  id            VARCHAR(255) NOT NULL PRIMARY KEY,
  queue         VARCHAR(255) NOT NULL DEFAULT '', -- the destination: a queue,
  exchange      VARCHAR(255) NOT NULL DEFAULT '', -- or an exchange
  routing_key   VARCHAR(255) NOT NULL DEFAULT '', -- and a routing key
  due_at        BIGINT       NOT NULL,
  version       BIGINT       NOT NULL DEFAULT 1,
  status        VARCHAR(16)  NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'running', 'done', 'cancelled', 'expired', 'failed') AND status NOT LIKE '% '),
  body          LONGBLOB     NOT NULL DEFAULT (''),
  content_type  VARCHAR(255) NOT NULL DEFAULT '',
  type          VARCHAR(255) NOT NULL DEFAULT '',
  correlation_id VARCHAR(255) NOT NULL DEFAULT '',
  priority      TINYINT UNSIGNED NOT NULL DEFAULT 0,
  expires_after BIGINT   CHECK (expires_after >= 1), -- milliseconds after due_at; NULL: never
  unique_key    VARCHAR(255), -- of which at most one task is pending; NULL: none
  pending_key   VARCHAR(255) GENERATED ALWAYS AS (CASE WHEN status = 'pending' THEN unique_key END) STORED, -- by which its index holds it to that
  headers       LONGTEXT, -- a JSON object of strings
  created_at    BIGINT       NOT NULL DEFAULT (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000),
  updated_at    BIGINT       NOT NULL DEFAULT (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000),
  finished_at   BIGINT, -- when it was done, cancelled, expired or failed
  attempts      INT          NOT NULL DEFAULT 0, -- failed attempts of the handler
  last_error    TEXT,
  sent_at       BIGINT, -- last confirmed publish of this version
  sends         INT          NOT NULL DEFAULT 0, -- confirmed publishes of this version
  send_failures INT          NOT NULL DEFAULT 0, -- since the last confirmed one
  resend_at     BIGINT, -- NULL: to be sent; else when the sweeper sends it again
  claimed_until BIGINT       NOT NULL DEFAULT 0, -- a relay's lease
  -- What the library refuses, refused from everybody. An instant that looks like
  -- seconds is taken for that mistake, which would be due at once.
  CONSTRAINT rabbitdelay_tasks_id_of_1_to_255_bytes CHECK (LENGTH(id) BETWEEN 1 AND 255),
  CONSTRAINT rabbitdelay_tasks_id_without_space_at_end CHECK (id NOT LIKE '% '),
  CONSTRAINT rabbitdelay_tasks_unique_key_of_1_to_255_bytes CHECK (LENGTH(unique_key) BETWEEN 1 AND 255 AND unique_key NOT LIKE '% '),
  CONSTRAINT rabbitdelay_tasks_names_up_to_255_bytes CHECK (LENGTH(queue) <= 255 AND LENGTH(exchange) <= 255 AND LENGTH(routing_key) <= 255 AND LENGTH(content_type) <= 255 AND LENGTH(type) <= 255 AND LENGTH(correlation_id) <= 255),
  CONSTRAINT rabbitdelay_tasks_one_destination CHECK ((queue <> '') <> (exchange <> '') AND (routing_key = '' OR exchange <> '')),
  CONSTRAINT rabbitdelay_tasks_due_at_in_milliseconds CHECK (due_at BETWEEN 0 AND 253402300799999 AND due_at NOT BETWEEN 1000000000 AND 99999999999),
  CONSTRAINT rabbitdelay_tasks_counts CHECK (version >= 1 AND attempts >= 0 AND sends >= 0 AND send_failures >= 0),
  CONSTRAINT rabbitdelay_tasks_finished_at_when_finished CHECK (status IN ('pending', 'running') OR finished_at IS NOT NULL),
  CONSTRAINT rabbitdelay_tasks_headers_a_json_object CHECK (headers IS NULL OR (JSON_VALID(headers) AND JSON_TYPE(headers) = 'OBJECT')),
  KEY rabbitdelay_tasks_claim (status, queue, exchange, resend_at, due_at),
  -- Both names in one index would leave no room for the id, and InnoDB would sort.
  KEY rabbitdelay_tasks_queue (queue, status, due_at, id),
  KEY rabbitdelay_tasks_exchange (exchange, status, due_at, id),
  KEY rabbitdelay_tasks_status (status, due_at, id),
  KEY rabbitdelay_tasks_finished (status, finished_at),
  UNIQUE KEY rabbitdelay_tasks_pending_key (pending_key),
  KEY rabbitdelay_tasks_unique_key (unique_key, status, finished_at)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Names by which tasks are found, any number of them for each task.
CREATE TABLE IF NOT EXISTS rabbitdelay_task_tags (
  tag     VARCHAR(100) NOT NULL,
  task_id VARCHAR(255) NOT NULL,
  PRIMARY KEY (tag, task_id),
  KEY rabbitdelay_task_tags_task (task_id),
  CONSTRAINT rabbitdelay_task_tags_task FOREIGN KEY (task_id) REFERENCES rabbitdelay_tasks (id) ON DELETE CASCADE
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

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

-- What the handler of one queue has done about a task. Tasks to an exchange have a
-- row for each queue that gets them; tasks to a queue only where attempts are
-- recorded before they run. Instants are milliseconds since the Unix epoch.
CREATE TABLE IF NOT EXISTS rabbitdelay_effects (
  task_id     VARCHAR(255) NOT NULL,
  created_at  BIGINT       NOT NULL, -- the task's: an id can be used again after its task was deleted
  version     BIGINT       NOT NULL, -- the task's
  queue       VARCHAR(255) NOT NULL, -- whose handler it is
  done_at     BIGINT, -- when the effect was committed, NULL before
  attempts    INT          NOT NULL DEFAULT 0, -- that were recorded before they ran
  lease_token VARCHAR(64)  NOT NULL DEFAULT '', -- of the attempt that runs, or ended without an outcome
  lease_until BIGINT       NOT NULL DEFAULT 0, -- until then nobody else may begin
  updated_at  BIGINT       NOT NULL DEFAULT (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000),
  PRIMARY KEY (task_id, created_at, version, queue),
  KEY rabbitdelay_effects_updated (updated_at)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The relays that run: each renews its row and deletes it when it ends. What is
-- old is of one that died. Instants are milliseconds since the Unix epoch.
CREATE TABLE IF NOT EXISTS rabbitdelay_relays (
  id         VARCHAR(64)  NOT NULL PRIMARY KEY,
  name       VARCHAR(255) NOT NULL, -- host:process
  version    VARCHAR(255) NOT NULL DEFAULT '', -- of rabbitdelay
  started_at BIGINT       NOT NULL,
  seen_at    BIGINT       NOT NULL
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Destinations whose tasks are held back: paused, or sent at most so often. A
-- destination is a queue, or an exchange with all its routing keys.
CREATE TABLE IF NOT EXISTS rabbitdelay_destinations (
  queue           VARCHAR(255) NOT NULL DEFAULT '',
  exchange        VARCHAR(255) NOT NULL DEFAULT '',
  paused_at       BIGINT, -- milliseconds since the Unix epoch; NULL: not paused
  paused_by       VARCHAR(255) NOT NULL DEFAULT '',
  per_second      DOUBLE       NOT NULL DEFAULT 0 CHECK (per_second >= 0), -- the rate limit; 0: none
  burst           BIGINT       NOT NULL DEFAULT 1 CHECK (burst >= 1), -- how many may be sent at once
  free_at         BIGINT       NOT NULL DEFAULT 0, -- nanoseconds: when the next one is due at that rate
  spread_due      BIGINT       NOT NULL DEFAULT 0, -- after a pause: what was due by then
  spread_until    BIGINT       NOT NULL DEFAULT 0, -- is sent until then,
  spread_rate     DOUBLE       NOT NULL DEFAULT 0, -- so many a second
  spread_free     BIGINT       NOT NULL DEFAULT 0, -- nanoseconds, as free_at
  file_per_second DOUBLE, -- the rate limit that a relay's configuration wrote last; NULL: none did
  file_burst      BIGINT       NOT NULL DEFAULT 0,
  PRIMARY KEY (queue, exchange),
  CONSTRAINT rabbitdelay_destinations_one CHECK ((queue <> '') <> (exchange <> ''))
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Who changed what with the console or its API, and the jobs among that: a bulk
-- change, a requeue, a retirement. Instants are milliseconds since the Unix epoch.
CREATE TABLE IF NOT EXISTS rabbitdelay_audit (
  id          VARCHAR(36)  NOT NULL PRIMARY KEY, -- in the order of time
  at          BIGINT       NOT NULL,
  who         VARCHAR(255) NOT NULL,
  action      VARCHAR(64)  NOT NULL,
  target      VARCHAR(255) NOT NULL DEFAULT '', -- a task's id, a queue, a name
  detail      TEXT         NOT NULL,
  error       TEXT         NOT NULL, -- why it was not done
  state       VARCHAR(16)  NOT NULL DEFAULT '', -- of a job: running, done, failed, interrupted or stopped
  total       BIGINT       NOT NULL DEFAULT 0,
  done        BIGINT       NOT NULL DEFAULT 0,
  result      TEXT         NOT NULL,
  request     LONGTEXT     NOT NULL, -- what a job does, as JSON
  place       MEDIUMTEXT   NOT NULL, -- behind which it goes on, with the tasks to come back to
  owner       VARCHAR(36)  NOT NULL DEFAULT '', -- the process that runs it
  alive_at    BIGINT       NOT NULL DEFAULT 0, -- when that was last heard of
  finished_at BIGINT,
  KEY rabbitdelay_audit_target (target, id),
  KEY rabbitdelay_audit_jobs (state, id)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The tasks that each bulk change has changed.
CREATE TABLE IF NOT EXISTS rabbitdelay_audit_tasks (
  audit_id VARCHAR(36)  NOT NULL,
  task_id  VARCHAR(255) NOT NULL,
  PRIMARY KEY (audit_id, task_id),
  KEY rabbitdelay_audit_tasks_task (task_id, audit_id)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- How tasks ended: by minute for an hour, by ten minutes for a day, by hour for a week.
-- The consoles write each row once, from the tasks themselves, and delete the old ones.
CREATE TABLE IF NOT EXISTS rabbitdelay_history (
  width_ms  BIGINT NOT NULL, -- how long the span is
  begins_at BIGINT NOT NULL, -- milliseconds since the Unix epoch
  done      BIGINT NOT NULL,
  failed    BIGINT NOT NULL,
  retries   BIGINT NOT NULL, -- attempts of these tasks after their first
  late      TEXT   NOT NULL, -- a JSON array: how many of the done ones were how late
  PRIMARY KEY (width_ms, begins_at)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

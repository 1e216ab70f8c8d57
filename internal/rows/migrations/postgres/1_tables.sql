-- Instants are milliseconds since the Unix epoch. The fillfactor leaves room in
-- each page for what the relay changes: a claim touches no indexed column, and a row
-- that finds room in its own page needs no new index entries.
CREATE TABLE IF NOT EXISTS rabbitdelay_tasks (
  id            text COLLATE "C" NOT NULL PRIMARY KEY,
  queue         text COLLATE "C" NOT NULL DEFAULT '', -- the destination: a queue,
  exchange      text COLLATE "C" NOT NULL DEFAULT '', -- or an exchange
  routing_key   text COLLATE "C" NOT NULL DEFAULT '', -- and a routing key
  due_at        bigint           NOT NULL,
  version       bigint           NOT NULL DEFAULT 1,
  status        text COLLATE "C" NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'running', 'done', 'cancelled', 'expired', 'failed')),
  body          bytea            NOT NULL DEFAULT '',
  content_type  text             NOT NULL DEFAULT '',
  type          text             NOT NULL DEFAULT '',
  correlation_id text            NOT NULL DEFAULT '',
  priority      smallint         NOT NULL DEFAULT 0 CHECK (priority BETWEEN 0 AND 255),
  expires_after bigint   CHECK (expires_after >= 1), -- milliseconds after due_at; NULL: never
  unique_key    text COLLATE "C", -- of which at most one task is pending; NULL: none
  headers       text, -- a JSON object of strings
  created_at    bigint           NOT NULL DEFAULT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint),
  updated_at    bigint           NOT NULL DEFAULT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint),
  finished_at   bigint, -- when it was done, cancelled, expired or failed
  attempts      integer          NOT NULL DEFAULT 0, -- failed attempts of the handler
  last_error    text,
  sent_at       bigint, -- last confirmed publish of this version
  sends         integer          NOT NULL DEFAULT 0, -- confirmed publishes of this version
  send_failures integer          NOT NULL DEFAULT 0, -- since the last confirmed one
  resend_at     bigint, -- NULL: to be sent; else when the sweeper sends it again
  claimed_until bigint           NOT NULL DEFAULT 0, -- a relay's lease
  -- What the library refuses, refused from everybody. An instant that looks like
  -- seconds is taken for that mistake, which would be due at once.
  CONSTRAINT rabbitdelay_tasks_id_of_1_to_255_bytes CHECK (octet_length(id) BETWEEN 1 AND 255),
  CONSTRAINT rabbitdelay_tasks_id_without_space_at_end CHECK (id NOT LIKE '% '),
  CONSTRAINT rabbitdelay_tasks_unique_key_of_1_to_255_bytes CHECK (octet_length(unique_key) BETWEEN 1 AND 255 AND unique_key NOT LIKE '% '),
  CONSTRAINT rabbitdelay_tasks_names_up_to_255_bytes CHECK (octet_length(queue) <= 255 AND octet_length(exchange) <= 255 AND octet_length(routing_key) <= 255 AND octet_length(content_type) <= 255 AND octet_length(type) <= 255 AND octet_length(correlation_id) <= 255),
  CONSTRAINT rabbitdelay_tasks_one_destination CHECK ((queue <> '') <> (exchange <> '') AND (routing_key = '' OR exchange <> '')),
  CONSTRAINT rabbitdelay_tasks_due_at_in_milliseconds CHECK (due_at BETWEEN 0 AND 253402300799999 AND due_at NOT BETWEEN 1000000000 AND 99999999999),
  CONSTRAINT rabbitdelay_tasks_counts CHECK (version >= 1 AND attempts >= 0 AND sends >= 0 AND send_failures >= 0),
  CONSTRAINT rabbitdelay_tasks_finished_at_when_finished CHECK (status IN ('pending', 'running') OR finished_at IS NOT NULL),
  CONSTRAINT rabbitdelay_tasks_headers_a_json_object CHECK (json_typeof(CAST(headers AS json)) = 'object')
) WITH (fillfactor = 70);

-- The relay's own indexes. One is on an expression, because the planner takes
-- resend_at for independent of status and due_at, and would read all pending
-- tasks of another index to find the few that are still to be sent.
CREATE INDEX IF NOT EXISTS rabbitdelay_tasks_claim ON rabbitdelay_tasks (queue, exchange, (due_at + 0)) WHERE status = 'pending' AND resend_at IS NULL;
CREATE INDEX IF NOT EXISTS rabbitdelay_tasks_resend ON rabbitdelay_tasks (queue, exchange, resend_at) WHERE status = 'pending' AND resend_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS rabbitdelay_tasks_queue ON rabbitdelay_tasks (queue, exchange, status, due_at, id);
CREATE INDEX IF NOT EXISTS rabbitdelay_tasks_status ON rabbitdelay_tasks (status, due_at, id);
CREATE INDEX IF NOT EXISTS rabbitdelay_tasks_finished ON rabbitdelay_tasks (status, finished_at) WHERE finished_at IS NOT NULL;

-- The first holds a unique key to one pending task; the second finds those that were done.
CREATE UNIQUE INDEX IF NOT EXISTS rabbitdelay_tasks_pending_key ON rabbitdelay_tasks (unique_key) WHERE status = 'pending' AND unique_key IS NOT NULL;
CREATE INDEX IF NOT EXISTS rabbitdelay_tasks_unique_key ON rabbitdelay_tasks (unique_key, status, finished_at) WHERE unique_key IS NOT NULL;

-- Wakes the relays at commit, for tasks that are due before they would look by
-- themselves. Only for those, because PostgreSQL commits transactions that
-- notify one after another.
CREATE OR REPLACE FUNCTION rabbitdelay_tasks_notify() RETURNS trigger LANGUAGE plpgsql AS
  $$ BEGIN PERFORM pg_notify('rabbitdelay_tasks', ''); RETURN NULL; END $$;
DROP TRIGGER IF EXISTS rabbitdelay_tasks_notify ON rabbitdelay_tasks;
CREATE TRIGGER rabbitdelay_tasks_notify AFTER INSERT OR UPDATE OF due_at ON rabbitdelay_tasks FOR EACH ROW
  WHEN (NEW.status = 'pending' AND NEW.due_at < extract(epoch FROM clock_timestamp()) * 1000 + 5000)
  EXECUTE FUNCTION rabbitdelay_tasks_notify();

-- Names by which tasks are found, any number of them for each task.
CREATE TABLE IF NOT EXISTS rabbitdelay_task_tags (
  tag     text COLLATE "C" NOT NULL,
  task_id text COLLATE "C" NOT NULL REFERENCES rabbitdelay_tasks (id) ON DELETE CASCADE,
  PRIMARY KEY (tag, task_id)
);
CREATE INDEX IF NOT EXISTS rabbitdelay_task_tags_task ON rabbitdelay_task_tags (task_id);

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

-- What the handler of one queue has done about a task. Tasks to an exchange have a
-- row for each queue that gets them; tasks to a queue only where attempts are
-- recorded before they run. Instants are milliseconds since the Unix epoch.
CREATE TABLE IF NOT EXISTS rabbitdelay_effects (
  task_id     text COLLATE "C" NOT NULL,
  created_at  bigint           NOT NULL, -- the task's: an id can be used again after its task was deleted
  version     bigint           NOT NULL, -- the task's
  queue       text COLLATE "C" NOT NULL, -- whose handler it is
  done_at     bigint, -- when the effect was committed, NULL before
  attempts    integer          NOT NULL DEFAULT 0, -- that were recorded before they ran
  lease_token text             NOT NULL DEFAULT '', -- of the attempt that runs, or ended without an outcome
  lease_until bigint           NOT NULL DEFAULT 0, -- until then nobody else may begin
  updated_at  bigint           NOT NULL DEFAULT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint),
  PRIMARY KEY (task_id, created_at, version, queue)
);
CREATE INDEX IF NOT EXISTS rabbitdelay_effects_updated ON rabbitdelay_effects (updated_at);

-- The relays that run: each renews its row and deletes it when it ends. What is
-- old is of one that died. Instants are milliseconds since the Unix epoch.
CREATE TABLE IF NOT EXISTS rabbitdelay_relays (
  id         text COLLATE "C" NOT NULL PRIMARY KEY,
  name       text COLLATE "C" NOT NULL, -- host:process
  version    text COLLATE "C" NOT NULL DEFAULT '', -- of rabbitdelay
  started_at bigint           NOT NULL,
  seen_at    bigint           NOT NULL
);

-- Destinations whose tasks are held back: paused, or sent at most so often. A
-- destination is a queue, or an exchange with all its routing keys.
CREATE TABLE IF NOT EXISTS rabbitdelay_destinations (
  queue           text COLLATE "C" NOT NULL DEFAULT '',
  exchange        text COLLATE "C" NOT NULL DEFAULT '',
  paused_at       bigint, -- milliseconds since the Unix epoch; NULL: not paused
  paused_by       text             NOT NULL DEFAULT '',
  per_second      double precision NOT NULL DEFAULT 0 CHECK (per_second >= 0), -- the rate limit; 0: none
  burst           bigint           NOT NULL DEFAULT 1 CHECK (burst >= 1), -- how many may be sent at once
  free_at         bigint           NOT NULL DEFAULT 0, -- nanoseconds: when the next one is due at that rate
  spread_due      bigint           NOT NULL DEFAULT 0, -- after a pause: what was due by then
  spread_until    bigint           NOT NULL DEFAULT 0, -- is sent until then,
  spread_rate     double precision NOT NULL DEFAULT 0, -- so many a second
  spread_free     bigint           NOT NULL DEFAULT 0, -- nanoseconds, as free_at
  file_per_second double precision, -- the rate limit that a relay's configuration wrote last; NULL: none did
  file_burst      bigint           NOT NULL DEFAULT 0,
  PRIMARY KEY (queue, exchange),
  CONSTRAINT rabbitdelay_destinations_one CHECK ((queue <> '') <> (exchange <> ''))
);

-- Who changed what with the console or its API, and the jobs among that: a bulk
-- change, a requeue, a retirement. Instants are milliseconds since the Unix epoch.
CREATE TABLE IF NOT EXISTS rabbitdelay_audit (
  id          text COLLATE "C" NOT NULL PRIMARY KEY, -- in the order of time
  at          bigint           NOT NULL,
  who         text             NOT NULL,
  action      text             NOT NULL,
  target      text COLLATE "C" NOT NULL DEFAULT '', -- a task's id, a queue, a name
  detail      text             NOT NULL DEFAULT '',
  error       text             NOT NULL DEFAULT '', -- why it was not done
  state       text COLLATE "C" NOT NULL DEFAULT '', -- of a job: running, done, failed, interrupted or stopped
  total       bigint           NOT NULL DEFAULT 0,
  done        bigint           NOT NULL DEFAULT 0,
  result      text             NOT NULL DEFAULT '',
  request     text             NOT NULL DEFAULT '', -- what a job does, as JSON
  place       text             NOT NULL DEFAULT '', -- behind which it goes on, with the tasks to come back to
  owner       text             NOT NULL DEFAULT '', -- the process that runs it
  alive_at    bigint           NOT NULL DEFAULT 0, -- when that was last heard of
  finished_at bigint
);
CREATE INDEX IF NOT EXISTS rabbitdelay_audit_target ON rabbitdelay_audit (target, id);
CREATE INDEX IF NOT EXISTS rabbitdelay_audit_jobs ON rabbitdelay_audit (state, id);

-- The tasks that each bulk change has changed.
CREATE TABLE IF NOT EXISTS rabbitdelay_audit_tasks (
  audit_id text NOT NULL,
  task_id  text NOT NULL,
  PRIMARY KEY (audit_id, task_id)
);
CREATE INDEX IF NOT EXISTS rabbitdelay_audit_tasks_task ON rabbitdelay_audit_tasks (task_id, audit_id);

-- How tasks ended: by minute for an hour, by ten minutes for a day, by hour for a week.
-- The consoles write each row once, from the tasks themselves, and delete the old ones.
CREATE TABLE IF NOT EXISTS rabbitdelay_history (
  width_ms  bigint NOT NULL, -- how long the span is
  begins_at bigint NOT NULL, -- milliseconds since the Unix epoch
  done      bigint NOT NULL,
  failed    bigint NOT NULL,
  retries   bigint NOT NULL, -- attempts of these tasks after their first
  late      text   NOT NULL, -- a JSON array: how many of the done ones were how late
  PRIMARY KEY (width_ms, begins_at)
);

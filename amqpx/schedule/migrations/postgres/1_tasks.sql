-- Instants are milliseconds since the Unix epoch.
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
  CONSTRAINT rabbitdelay_tasks_names_up_to_255_bytes CHECK (octet_length(queue) <= 255 AND octet_length(exchange) <= 255 AND octet_length(routing_key) <= 255 AND octet_length(content_type) <= 255 AND octet_length(type) <= 255 AND octet_length(correlation_id) <= 255),
  CONSTRAINT rabbitdelay_tasks_one_destination CHECK ((queue <> '') <> (exchange <> '') AND (routing_key = '' OR exchange <> '')),
  CONSTRAINT rabbitdelay_tasks_due_at_in_milliseconds CHECK (due_at BETWEEN 0 AND 253402300799999 AND due_at NOT BETWEEN 1000000000 AND 99999999999),
  CONSTRAINT rabbitdelay_tasks_counts CHECK (version >= 1 AND attempts >= 0 AND sends >= 0 AND send_failures >= 0),
  CONSTRAINT rabbitdelay_tasks_finished_at_when_finished CHECK (status IN ('pending', 'running') OR finished_at IS NOT NULL),
  CONSTRAINT rabbitdelay_tasks_headers_a_json_object CHECK (json_typeof(CAST(headers AS json)) = 'object')
);

-- The relay's own indexes. One is on an expression, because the planner takes
-- resend_at for independent of status and due_at, and would read all pending
-- tasks of another index to find the few that are still to be sent.
CREATE INDEX IF NOT EXISTS rabbitdelay_tasks_claim ON rabbitdelay_tasks (queue, exchange, (due_at + 0)) WHERE status = 'pending' AND resend_at IS NULL;
CREATE INDEX IF NOT EXISTS rabbitdelay_tasks_resend ON rabbitdelay_tasks (queue, exchange, resend_at) WHERE status = 'pending' AND resend_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS rabbitdelay_tasks_queue ON rabbitdelay_tasks (queue, exchange, status, due_at, id);
CREATE INDEX IF NOT EXISTS rabbitdelay_tasks_status ON rabbitdelay_tasks (status, due_at, id);
CREATE INDEX IF NOT EXISTS rabbitdelay_tasks_finished ON rabbitdelay_tasks (status, finished_at) WHERE finished_at IS NOT NULL;

-- Wakes the relays at commit, for tasks that are due before they would look by
-- themselves. Only for those, because PostgreSQL commits transactions that
-- notify one after another.
CREATE OR REPLACE FUNCTION rabbitdelay_tasks_notify() RETURNS trigger LANGUAGE plpgsql AS
  $$ BEGIN PERFORM pg_notify('rabbitdelay_tasks', ''); RETURN NULL; END $$;
DROP TRIGGER IF EXISTS rabbitdelay_tasks_notify ON rabbitdelay_tasks;
CREATE TRIGGER rabbitdelay_tasks_notify AFTER INSERT OR UPDATE OF due_at ON rabbitdelay_tasks FOR EACH ROW
  WHEN (NEW.status = 'pending' AND NEW.due_at < extract(epoch FROM clock_timestamp()) * 1000 + 5000)
  EXECUTE FUNCTION rabbitdelay_tasks_notify();

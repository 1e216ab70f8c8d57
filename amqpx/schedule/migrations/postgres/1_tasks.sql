-- Instants are milliseconds since the Unix epoch.
CREATE TABLE IF NOT EXISTS rabbitdelay_tasks (
  id            text COLLATE "C" NOT NULL PRIMARY KEY,
  queue         text COLLATE "C" NOT NULL DEFAULT '', -- the destination: a queue,
  exchange      text COLLATE "C" NOT NULL DEFAULT '', -- or an exchange
  routing_key   text COLLATE "C" NOT NULL DEFAULT '', -- and a routing key
  due_at        bigint           NOT NULL,
  version       bigint           NOT NULL DEFAULT 1 CHECK (version >= 1),
  status        text COLLATE "C" NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'done', 'cancelled', 'failed')),
  body          bytea            NOT NULL DEFAULT '',
  content_type  text             NOT NULL DEFAULT '',
  headers       text, -- a JSON object of strings
  created_at    bigint           NOT NULL DEFAULT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint),
  updated_at    bigint           NOT NULL DEFAULT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint),
  finished_at   bigint, -- when it was done, cancelled or failed
  attempts      integer          NOT NULL DEFAULT 0, -- failed attempts of the handler
  last_error    text,
  sent_at       bigint, -- last confirmed publish of this version
  sends         integer          NOT NULL DEFAULT 0, -- confirmed publishes of this version
  send_failures integer          NOT NULL DEFAULT 0, -- since the last confirmed one
  resend_at     bigint, -- NULL: to be sent; else when the sweeper sends it again
  claimed_until bigint           NOT NULL DEFAULT 0, -- a relay's lease
  CHECK ((queue <> '') <> (exchange <> ''))
);

-- The relay's own index. It is on an expression, because the planner takes
-- resend_at for independent of status and due_at, and would read all pending
-- tasks of the status index to find the few that are still to be sent.
CREATE INDEX IF NOT EXISTS rabbitdelay_tasks_claim ON rabbitdelay_tasks ((due_at + 0)) WHERE status = 'pending' AND resend_at IS NULL;
CREATE INDEX IF NOT EXISTS rabbitdelay_tasks_resend ON rabbitdelay_tasks (resend_at) WHERE status = 'pending' AND resend_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS rabbitdelay_tasks_queue ON rabbitdelay_tasks (queue, status, due_at, id);
CREATE INDEX IF NOT EXISTS rabbitdelay_tasks_status ON rabbitdelay_tasks (status, due_at, id);
CREATE INDEX IF NOT EXISTS rabbitdelay_tasks_finished ON rabbitdelay_tasks (finished_at) WHERE finished_at IS NOT NULL;

-- Wakes the relays at commit, for tasks that are due before they would look by
-- themselves. Only for those, because PostgreSQL commits transactions that
-- notify one after another.
CREATE OR REPLACE FUNCTION rabbitdelay_tasks_notify() RETURNS trigger LANGUAGE plpgsql AS
  $$ BEGIN PERFORM pg_notify('rabbitdelay_tasks', ''); RETURN NULL; END $$;
DROP TRIGGER IF EXISTS rabbitdelay_tasks_notify ON rabbitdelay_tasks;
CREATE TRIGGER rabbitdelay_tasks_notify AFTER INSERT OR UPDATE OF due_at ON rabbitdelay_tasks FOR EACH ROW
  WHEN (NEW.status = 'pending' AND NEW.due_at < extract(epoch FROM clock_timestamp()) * 1000 + 5000)
  EXECUTE FUNCTION rabbitdelay_tasks_notify();

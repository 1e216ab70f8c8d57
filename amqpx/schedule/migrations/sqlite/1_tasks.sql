-- Instants are milliseconds since the Unix epoch.
CREATE TABLE IF NOT EXISTS rabbitdelay_tasks (
  id            TEXT    NOT NULL PRIMARY KEY,
  queue         TEXT    NOT NULL DEFAULT '', -- the destination: a queue,
  exchange      TEXT    NOT NULL DEFAULT '', -- or an exchange
  routing_key   TEXT    NOT NULL DEFAULT '', -- and a routing key
  due_at        INTEGER NOT NULL,
  version       INTEGER NOT NULL DEFAULT 1 CHECK (version >= 1),
  status        TEXT    NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'done', 'cancelled', 'failed')),
  body          BLOB    NOT NULL DEFAULT '',
  content_type  TEXT    NOT NULL DEFAULT '',
  headers       TEXT, -- a JSON object of strings
  created_at    INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)),
  updated_at    INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)),
  finished_at   INTEGER, -- when it was done, cancelled or failed
  attempts      INTEGER NOT NULL DEFAULT 0, -- failed attempts of the handler
  last_error    TEXT,
  sent_at       INTEGER, -- last confirmed publish of this version
  sends         INTEGER NOT NULL DEFAULT 0, -- confirmed publishes of this version
  send_failures INTEGER NOT NULL DEFAULT 0, -- since the last confirmed one
  resend_at     INTEGER, -- NULL: to be sent; else when the sweeper sends it again
  claimed_until INTEGER NOT NULL DEFAULT 0, -- a relay's lease
  CHECK ((queue <> '') <> (exchange <> ''))
);

CREATE INDEX IF NOT EXISTS rabbitdelay_tasks_claim ON rabbitdelay_tasks (due_at) WHERE status = 'pending' AND resend_at IS NULL;
CREATE INDEX IF NOT EXISTS rabbitdelay_tasks_resend ON rabbitdelay_tasks (resend_at) WHERE status = 'pending' AND resend_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS rabbitdelay_tasks_queue ON rabbitdelay_tasks (queue, status, due_at, id);
CREATE INDEX IF NOT EXISTS rabbitdelay_tasks_status ON rabbitdelay_tasks (status, due_at, id);
CREATE INDEX IF NOT EXISTS rabbitdelay_tasks_finished ON rabbitdelay_tasks (finished_at) WHERE finished_at IS NOT NULL;

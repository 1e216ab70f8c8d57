-- Instants are milliseconds since the Unix epoch.
CREATE TABLE IF NOT EXISTS rabbitdelay_tasks (
  id            TEXT    NOT NULL PRIMARY KEY,
  queue         TEXT    NOT NULL DEFAULT '', -- the destination: a queue,
  exchange      TEXT    NOT NULL DEFAULT '', -- or an exchange
  routing_key   TEXT    NOT NULL DEFAULT '', -- and a routing key
  due_at        INTEGER NOT NULL,
  version       INTEGER NOT NULL DEFAULT 1,
  status        TEXT    NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'running', 'done', 'cancelled', 'expired', 'failed')),
  body          BLOB    NOT NULL DEFAULT '',
  content_type  TEXT    NOT NULL DEFAULT '',
  type          TEXT    NOT NULL DEFAULT '',
  correlation_id TEXT   NOT NULL DEFAULT '',
  priority      INTEGER NOT NULL DEFAULT 0 CHECK (priority BETWEEN 0 AND 255),
  expires_after INTEGER  CHECK (expires_after >= 1), -- milliseconds after due_at; NULL: never
  headers       TEXT, -- a JSON object of strings
  created_at    INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)),
  updated_at    INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)),
  finished_at   INTEGER, -- when it was done, cancelled, expired or failed
  attempts      INTEGER NOT NULL DEFAULT 0, -- failed attempts of the handler
  last_error    TEXT,
  sent_at       INTEGER, -- last confirmed publish of this version
  sends         INTEGER NOT NULL DEFAULT 0, -- confirmed publishes of this version
  send_failures INTEGER NOT NULL DEFAULT 0, -- since the last confirmed one
  resend_at     INTEGER, -- NULL: to be sent; else when the sweeper sends it again
  claimed_until INTEGER NOT NULL DEFAULT 0, -- a relay's lease
  -- What the library refuses, refused from everybody. An instant that looks like
  -- seconds is taken for that mistake, which would be due at once.
  CONSTRAINT rabbitdelay_tasks_id_of_1_to_255_bytes CHECK (length(CAST(id AS BLOB)) BETWEEN 1 AND 255),
  CONSTRAINT rabbitdelay_tasks_id_without_space_at_end CHECK (id NOT LIKE '% '),
  CONSTRAINT rabbitdelay_tasks_names_up_to_255_bytes CHECK (length(CAST(queue AS BLOB)) <= 255 AND length(CAST(exchange AS BLOB)) <= 255 AND length(CAST(routing_key AS BLOB)) <= 255 AND length(CAST(content_type AS BLOB)) <= 255 AND length(CAST(type AS BLOB)) <= 255 AND length(CAST(correlation_id AS BLOB)) <= 255),
  CONSTRAINT rabbitdelay_tasks_one_destination CHECK ((queue <> '') <> (exchange <> '') AND (routing_key = '' OR exchange <> '')),
  CONSTRAINT rabbitdelay_tasks_due_at_in_milliseconds CHECK (due_at BETWEEN 0 AND 253402300799999 AND due_at NOT BETWEEN 1000000000 AND 99999999999),
  CONSTRAINT rabbitdelay_tasks_counts CHECK (version >= 1 AND attempts >= 0 AND sends >= 0 AND send_failures >= 0),
  CONSTRAINT rabbitdelay_tasks_finished_at_when_finished CHECK (status IN ('pending', 'running') OR finished_at IS NOT NULL),
  -- Not STRICT, which SQLite has since 3.37: a file with such a table cannot be
  -- opened by an earlier one at all.
  CONSTRAINT rabbitdelay_tasks_types CHECK (typeof(id) = 'text' AND typeof(queue) = 'text' AND typeof(exchange) = 'text' AND typeof(routing_key) = 'text' AND typeof(content_type) = 'text' AND typeof(type) = 'text' AND typeof(correlation_id) = 'text'
    AND typeof(due_at) = 'integer' AND typeof(version) = 'integer' AND typeof(priority) = 'integer' AND typeof(created_at) = 'integer' AND typeof(updated_at) = 'integer' AND typeof(attempts) = 'integer' AND typeof(sends) = 'integer' AND typeof(send_failures) = 'integer' AND typeof(claimed_until) = 'integer'
    AND typeof(expires_after) IN ('integer', 'null') AND typeof(finished_at) IN ('integer', 'null') AND typeof(sent_at) IN ('integer', 'null') AND typeof(resend_at) IN ('integer', 'null')
    AND typeof(body) IN ('blob', 'text') AND typeof(headers) IN ('text', 'null') AND typeof(last_error) IN ('text', 'null')),
  -- Without JSON's functions, which not every SQLite before 3.38 has.
  CONSTRAINT rabbitdelay_tasks_headers_a_json_object CHECK (trim(headers, ' ' || char(9, 10, 13)) GLOB '{*}')
);

CREATE INDEX IF NOT EXISTS rabbitdelay_tasks_claim ON rabbitdelay_tasks (queue, exchange, due_at) WHERE status = 'pending' AND resend_at IS NULL;
CREATE INDEX IF NOT EXISTS rabbitdelay_tasks_resend ON rabbitdelay_tasks (queue, exchange, resend_at) WHERE status = 'pending' AND resend_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS rabbitdelay_tasks_queue ON rabbitdelay_tasks (queue, exchange, status, due_at, id);
CREATE INDEX IF NOT EXISTS rabbitdelay_tasks_status ON rabbitdelay_tasks (status, due_at, id);
CREATE INDEX IF NOT EXISTS rabbitdelay_tasks_finished ON rabbitdelay_tasks (status, finished_at) WHERE finished_at IS NOT NULL;

-- Instants are milliseconds since the Unix epoch.
CREATE TABLE IF NOT EXISTS rabbitdelay_tasks (
  id            VARCHAR(255) NOT NULL PRIMARY KEY,
  queue         VARCHAR(255) NOT NULL DEFAULT '', -- the destination: a queue,
  exchange      VARCHAR(255) NOT NULL DEFAULT '', -- or an exchange
  routing_key   VARCHAR(255) NOT NULL DEFAULT '', -- and a routing key
  due_at        BIGINT       NOT NULL,
  version       BIGINT       NOT NULL DEFAULT 1 CHECK (version >= 1),
  status        VARCHAR(16)  NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'done', 'cancelled', 'failed')),
  body          LONGBLOB     NOT NULL DEFAULT (''),
  content_type  VARCHAR(255) NOT NULL DEFAULT '',
  headers       LONGTEXT, -- a JSON object of strings
  created_at    BIGINT       NOT NULL DEFAULT (CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED)),
  updated_at    BIGINT       NOT NULL DEFAULT (CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED)),
  finished_at   BIGINT, -- when it was done, cancelled or failed
  attempts      INT          NOT NULL DEFAULT 0, -- failed attempts of the handler
  last_error    TEXT,
  sent_at       BIGINT, -- last confirmed publish of this version
  sends         INT          NOT NULL DEFAULT 0, -- confirmed publishes of this version
  send_failures INT          NOT NULL DEFAULT 0, -- since the last confirmed one
  resend_at     BIGINT, -- NULL: to be sent; else when the sweeper sends it again
  claimed_until BIGINT       NOT NULL DEFAULT 0, -- a relay's lease
  CHECK ((queue <> '') <> (exchange <> '')),
  KEY rabbitdelay_tasks_claim (status, resend_at, due_at),
  KEY rabbitdelay_tasks_queue (queue, status, due_at, id),
  KEY rabbitdelay_tasks_status (status, due_at, id),
  KEY rabbitdelay_tasks_finished (finished_at)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

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
  CONSTRAINT rabbitdelay_tasks_names_up_to_255_bytes CHECK (LENGTH(queue) <= 255 AND LENGTH(exchange) <= 255 AND LENGTH(routing_key) <= 255 AND LENGTH(content_type) <= 255 AND LENGTH(type) <= 255 AND LENGTH(correlation_id) <= 255),
  CONSTRAINT rabbitdelay_tasks_one_destination CHECK ((queue <> '') <> (exchange <> '') AND (routing_key = '' OR exchange <> '')),
  CONSTRAINT rabbitdelay_tasks_due_at_in_milliseconds CHECK (due_at BETWEEN 0 AND 253402300799999 AND due_at NOT BETWEEN 1000000000 AND 99999999999),
  CONSTRAINT rabbitdelay_tasks_counts CHECK (version >= 1 AND attempts >= 0 AND sends >= 0 AND send_failures >= 0),
  CONSTRAINT rabbitdelay_tasks_finished_at_when_finished CHECK (status IN ('pending', 'running') OR finished_at IS NOT NULL),
  CONSTRAINT rabbitdelay_tasks_headers_a_json_object CHECK (headers IS NULL OR (JSON_VALID(headers) AND JSON_TYPE(headers) = 'OBJECT')),
  KEY rabbitdelay_tasks_claim (status, queue, exchange, resend_at, due_at),
  KEY rabbitdelay_tasks_queue (queue, exchange, status, due_at), -- and id, the primary key
  KEY rabbitdelay_tasks_status (status, due_at, id),
  KEY rabbitdelay_tasks_finished (status, finished_at)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

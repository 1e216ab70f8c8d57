CREATE TABLE IF NOT EXISTS rabbitdelay_processed (
  scope        TEXT    NOT NULL, -- the queue, unless the handler was given another scope
  message_id   TEXT    NOT NULL,
  outcome      TEXT    NOT NULL, -- done, or guarded: the guard said no
  processed_at INTEGER NOT NULL, -- milliseconds since the Unix epoch
  PRIMARY KEY (scope, message_id)
);

CREATE INDEX IF NOT EXISTS rabbitdelay_processed_at ON rabbitdelay_processed (processed_at);

CREATE TABLE IF NOT EXISTS rabbitdelay_processed (
  scope        text COLLATE "C" NOT NULL, -- the queue, unless the handler was given another scope
  message_id   text COLLATE "C" NOT NULL,
  outcome      text             NOT NULL, -- done, or guarded: the guard said no
  processed_at bigint           NOT NULL, -- milliseconds since the Unix epoch
  PRIMARY KEY (scope, message_id)
);

CREATE INDEX IF NOT EXISTS rabbitdelay_processed_at ON rabbitdelay_processed (processed_at);

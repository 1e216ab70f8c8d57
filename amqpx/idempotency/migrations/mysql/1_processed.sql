-- VARBINARY, because the usual collations find 'A' equal to 'a' and 'a ' equal
-- to 'a', and would take one message for another.
CREATE TABLE IF NOT EXISTS rabbitdelay_processed (
  scope        VARBINARY(255) NOT NULL, -- the queue, unless the handler was given another scope
  message_id   VARBINARY(255) NOT NULL,
  outcome      VARBINARY(16)  NOT NULL, -- done, or guarded: the guard said no
  processed_at BIGINT         NOT NULL, -- milliseconds since the Unix epoch
  PRIMARY KEY (scope, message_id),
  KEY rabbitdelay_processed_at (processed_at)
) ENGINE=InnoDB;

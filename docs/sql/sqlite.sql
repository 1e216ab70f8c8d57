-- The statements of docs/tasks.md for SQLite; :names are parameters.

-- schedule: 30 minutes from now
INSERT INTO rabbitdelay_tasks (id, queue, due_at, body)
VALUES ('order-42-expire', 'orders.expire', CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) + 30 * 60 * 1000, '{"order":42}');

-- schedule to an exchange, with headers
INSERT INTO rabbitdelay_tasks (id, exchange, routing_key, due_at, body, content_type, headers)
VALUES ('post-7', 'events', 'post.publish', CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) + 24 * 60 * 60 * 1000, '{"post":7}', 'application/json', '{"tenant":"blue"}');

-- schedule, or replace the task that has this id: 45 minutes from now
INSERT INTO rabbitdelay_tasks (id, queue, due_at, body, updated_at)
VALUES ('order-42-expire', 'orders.expire', CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) + 45 * 60 * 1000, '{"order":42}', CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER))
ON CONFLICT (id) DO UPDATE SET
  queue = excluded.queue, exchange = excluded.exchange, routing_key = excluded.routing_key, due_at = excluded.due_at, body = excluded.body,
  content_type = excluded.content_type, type = excluded.type, correlation_id = excluded.correlation_id, priority = excluded.priority, expires_after = excluded.expires_after, unique_key = excluded.unique_key, headers = excluded.headers, created_at = excluded.created_at, updated_at = excluded.updated_at,
  version = rabbitdelay_tasks.version + 1, status = 'pending', attempts = 0, last_error = NULL, finished_at = NULL,
  sent_at = NULL, sends = 0, send_failures = 0, resend_at = NULL, claimed_until = 0;

-- schedule with a unique key, keep: 5 seconds from now, unless a task with the key is pending
INSERT INTO rabbitdelay_tasks (id, unique_key, queue, due_at, body, updated_at)
VALUES (:id, 'reindex-42', 'search.reindex', CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) + 5 * 1000, '{"product":42}', CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER))
ON CONFLICT (unique_key) WHERE status = 'pending' AND unique_key IS NOT NULL DO UPDATE SET
  updated_at = max(rabbitdelay_tasks.updated_at + 1, excluded.updated_at);

-- schedule with a unique key, replace: replace the pending task with the key
INSERT INTO rabbitdelay_tasks (id, unique_key, queue, due_at, body, updated_at)
VALUES (:id, 'reindex-42', 'search.reindex', CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) + 5 * 1000, '{"product":42}', CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER))
ON CONFLICT (unique_key) WHERE status = 'pending' AND unique_key IS NOT NULL DO UPDATE SET
  queue = excluded.queue, exchange = excluded.exchange, routing_key = excluded.routing_key, due_at = excluded.due_at, body = excluded.body,
  content_type = excluded.content_type, type = excluded.type, correlation_id = excluded.correlation_id, priority = excluded.priority, expires_after = excluded.expires_after, headers = excluded.headers, created_at = excluded.created_at, updated_at = excluded.updated_at,
  version = rabbitdelay_tasks.version + 1, attempts = 0, last_error = NULL, finished_at = NULL,
  sent_at = NULL, sends = 0, send_failures = 0, resend_at = NULL, claimed_until = 0;

-- schedule with a unique key, push back: at most a minute after the pending task was scheduled
INSERT INTO rabbitdelay_tasks (id, unique_key, queue, due_at, body, updated_at)
VALUES (:id, 'reindex-42', 'search.reindex', CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) + 5 * 1000, '{"product":42}', CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER))
ON CONFLICT (unique_key) WHERE status = 'pending' AND unique_key IS NOT NULL DO UPDATE SET
  due_at = min(excluded.due_at, rabbitdelay_tasks.created_at + 60 * 1000), updated_at = excluded.updated_at,
  version = rabbitdelay_tasks.version + 1, attempts = 0, last_error = NULL, finished_at = NULL,
  sent_at = NULL, sends = 0, send_failures = 0, resend_at = NULL, claimed_until = 0
WHERE rabbitdelay_tasks.due_at < min(excluded.due_at, rabbitdelay_tasks.created_at + 60 * 1000);

-- refuse: cancel the new task while a task with the key is running, and for an hour after one was done
UPDATE rabbitdelay_tasks SET status = 'cancelled', finished_at = CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER), updated_at = CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)
WHERE id = :id AND status = 'pending' AND EXISTS (SELECT 1 FROM rabbitdelay_tasks AS earlier WHERE earlier.unique_key = rabbitdelay_tasks.unique_key
  AND (earlier.status = 'running' OR earlier.status = 'done' AND earlier.finished_at > CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) - 60 * 60 * 1000));

-- which task has the key
SELECT id, version FROM rabbitdelay_tasks WHERE unique_key = 'reindex-42' AND status = 'pending';

-- reschedule: to an hour from now
UPDATE rabbitdelay_tasks SET
  due_at = CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) + 60 * 60 * 1000, updated_at = CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER),
  version = version + 1, attempts = 0, last_error = NULL, finished_at = NULL,
  sent_at = NULL, sends = 0, send_failures = 0, resend_at = NULL, claimed_until = 0
WHERE id = 'order-42-expire' AND status = 'pending';

-- run now
UPDATE rabbitdelay_tasks SET
  due_at = CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER), updated_at = CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER),
  version = version + 1, attempts = 0, last_error = NULL, finished_at = NULL,
  sent_at = NULL, sends = 0, send_failures = 0, resend_at = NULL, claimed_until = 0
WHERE id = 'order-42-expire' AND status = 'pending';

-- cancel
UPDATE rabbitdelay_tasks SET
  status = 'cancelled', finished_at = CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER), updated_at = CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)
WHERE id = 'order-42-expire' AND status = 'pending';

-- revive: a failed task, due now
UPDATE rabbitdelay_tasks SET
  status = 'pending', due_at = CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER), updated_at = CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER),
  version = version + 1, attempts = 0, last_error = NULL, finished_at = NULL,
  sent_at = NULL, sends = 0, send_failures = 0, resend_at = NULL, claimed_until = 0
WHERE id = 'order-42-expire' AND status = 'failed';

-- consume: the first statement in the transaction of the effect
UPDATE rabbitdelay_tasks SET
  status = 'done', finished_at = CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER), updated_at = CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)
WHERE id = :id AND version = :version AND created_at = :created AND status = 'pending' AND due_at <= :due
  AND (expires_after IS NULL OR expires_after > CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) - CASE WHEN due_at = 0 THEN created_at ELSE due_at END);

-- consume from an exchange: the first statement in the transaction of the effect
UPDATE rabbitdelay_tasks SET
  status = 'done', finished_at = CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER), updated_at = CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)
WHERE id = :id AND version = :version AND created_at = :created AND status IN ('pending', 'running', 'failed') AND due_at <= :due
  AND (expires_after IS NULL OR expires_after > CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) - CASE WHEN due_at = 0 THEN created_at ELSE due_at END);

-- record the effect: the second statement, for the queue from which the message was received
INSERT INTO rabbitdelay_effects (task_id, created_at, version, queue, done_at)
SELECT id, created_at, version, :queue, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) FROM rabbitdelay_tasks
WHERE id = :id AND version = :version AND created_at = :created AND status = 'done' AND due_at <= :due
ON CONFLICT DO NOTHING;

-- record the effect of a later attempt: if "record the effect" inserted no row, because an attempt in this queue has failed or died
UPDATE rabbitdelay_effects SET done_at = CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER), updated_at = CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)
WHERE task_id = :id AND version = :version AND created_at = :created AND queue = :queue AND done_at IS NULL AND lease_until <= CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)
  AND EXISTS (SELECT 1 FROM rabbitdelay_tasks WHERE id = :id AND version = :version AND created_at = :created AND status = 'done' AND due_at <= :due);

-- fail: the last attempt has failed and was rolled back
UPDATE rabbitdelay_tasks SET
  status = 'failed', attempts = :attempt, last_error = :error, finished_at = CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER), updated_at = CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)
WHERE id = :id AND version = :version AND created_at = :created AND status = 'pending';

-- pause a queue: for an exchange, write exchange in place of queue
INSERT INTO rabbitdelay_destinations (queue, paused_at, paused_by)
VALUES ('orders.expire', CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER), 'me')
ON CONFLICT (queue, exchange) DO UPDATE SET paused_at = excluded.paused_at, paused_by = excluded.paused_by
WHERE rabbitdelay_destinations.paused_at IS NULL;

-- resume
UPDATE rabbitdelay_destinations SET paused_at = NULL, paused_by = '', spread_due = 0, spread_until = 0, spread_rate = 0, spread_free = 0
WHERE queue = 'orders.expire' AND exchange = '' AND paused_at IS NOT NULL;

-- list: what is due within the next hour
SELECT id, due_at, version, attempts, last_error FROM rabbitdelay_tasks
WHERE queue = 'orders.expire' AND status = 'pending' AND due_at < CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) + 60 * 60 * 1000
ORDER BY due_at, id LIMIT 100;

-- count
SELECT queue, status, COUNT(*) FROM rabbitdelay_tasks GROUP BY queue, status ORDER BY queue, status;

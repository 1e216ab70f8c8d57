-- The statements of docs/tasks.md for PostgreSQL; :names are parameters. The column body is bytea. It treats
-- backslashes in a text as escapes, so pass bytes or convert_to(:body, 'UTF8').

-- schedule: 30 minutes from now
INSERT INTO rabbitdelay_tasks (id, queue, due_at, body)
VALUES ('order-42-expire', 'orders.expire', CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint) + 30 * 60 * 1000, convert_to('{"order":42}', 'UTF8'));

-- schedule to an exchange, with headers
INSERT INTO rabbitdelay_tasks (id, exchange, routing_key, due_at, body, content_type, headers)
VALUES ('post-7', 'events', 'post.publish', CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint) + 24 * 60 * 60 * 1000, convert_to('{"post":7}', 'UTF8'), 'application/json', '{"tenant":"blue"}');

-- schedule, or replace the task that has this id: 45 minutes from now
INSERT INTO rabbitdelay_tasks (id, queue, due_at, body, updated_at)
VALUES ('order-42-expire', 'orders.expire', CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint) + 45 * 60 * 1000, convert_to('{"order":42}', 'UTF8'), CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint))
ON CONFLICT (id) DO UPDATE SET
  queue = excluded.queue, exchange = excluded.exchange, routing_key = excluded.routing_key, due_at = excluded.due_at, body = excluded.body,
  content_type = excluded.content_type, type = excluded.type, correlation_id = excluded.correlation_id, priority = excluded.priority, expires_after = excluded.expires_after, unique_key = excluded.unique_key, headers = excluded.headers, created_at = excluded.created_at, updated_at = excluded.updated_at,
  version = rabbitdelay_tasks.version + 1, status = 'pending', attempts = 0, last_error = NULL, finished_at = NULL,
  sent_at = NULL, sends = 0, send_failures = 0, resend_at = NULL, claimed_until = 0;

-- schedule with a unique key, keep: 5 seconds from now, unless a task with the key is pending
INSERT INTO rabbitdelay_tasks (id, unique_key, queue, due_at, body, updated_at)
VALUES (:id, 'reindex-42', 'search.reindex', CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint) + 5 * 1000, convert_to('{"product":42}', 'UTF8'), CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint))
ON CONFLICT (unique_key) WHERE status = 'pending' AND unique_key IS NOT NULL DO UPDATE SET
  updated_at = GREATEST(rabbitdelay_tasks.updated_at + 1, excluded.updated_at);

-- schedule with a unique key, replace: replace the pending task with the key
INSERT INTO rabbitdelay_tasks (id, unique_key, queue, due_at, body, updated_at)
VALUES (:id, 'reindex-42', 'search.reindex', CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint) + 5 * 1000, convert_to('{"product":42}', 'UTF8'), CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint))
ON CONFLICT (unique_key) WHERE status = 'pending' AND unique_key IS NOT NULL DO UPDATE SET
  queue = excluded.queue, exchange = excluded.exchange, routing_key = excluded.routing_key, due_at = excluded.due_at, body = excluded.body,
  content_type = excluded.content_type, type = excluded.type, correlation_id = excluded.correlation_id, priority = excluded.priority, expires_after = excluded.expires_after, headers = excluded.headers, created_at = excluded.created_at, updated_at = excluded.updated_at,
  version = rabbitdelay_tasks.version + 1, attempts = 0, last_error = NULL, finished_at = NULL,
  sent_at = NULL, sends = 0, send_failures = 0, resend_at = NULL, claimed_until = 0;

-- schedule with a unique key, push back: at most a minute after the pending task was scheduled
INSERT INTO rabbitdelay_tasks (id, unique_key, queue, due_at, body, updated_at)
VALUES (:id, 'reindex-42', 'search.reindex', CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint) + 5 * 1000, convert_to('{"product":42}', 'UTF8'), CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint))
ON CONFLICT (unique_key) WHERE status = 'pending' AND unique_key IS NOT NULL DO UPDATE SET
  updated_at = GREATEST(rabbitdelay_tasks.updated_at + 1, excluded.updated_at),
  version = CASE WHEN rabbitdelay_tasks.due_at < LEAST(excluded.due_at, rabbitdelay_tasks.created_at + 60 * 1000) THEN rabbitdelay_tasks.version + 1 ELSE rabbitdelay_tasks.version END,
  attempts = CASE WHEN rabbitdelay_tasks.due_at < LEAST(excluded.due_at, rabbitdelay_tasks.created_at + 60 * 1000) THEN 0 ELSE rabbitdelay_tasks.attempts END,
  last_error = CASE WHEN rabbitdelay_tasks.due_at < LEAST(excluded.due_at, rabbitdelay_tasks.created_at + 60 * 1000) THEN NULL ELSE rabbitdelay_tasks.last_error END,
  sent_at = CASE WHEN rabbitdelay_tasks.due_at < LEAST(excluded.due_at, rabbitdelay_tasks.created_at + 60 * 1000) THEN NULL ELSE rabbitdelay_tasks.sent_at END,
  sends = CASE WHEN rabbitdelay_tasks.due_at < LEAST(excluded.due_at, rabbitdelay_tasks.created_at + 60 * 1000) THEN 0 ELSE rabbitdelay_tasks.sends END,
  send_failures = CASE WHEN rabbitdelay_tasks.due_at < LEAST(excluded.due_at, rabbitdelay_tasks.created_at + 60 * 1000) THEN 0 ELSE rabbitdelay_tasks.send_failures END,
  resend_at = CASE WHEN rabbitdelay_tasks.due_at < LEAST(excluded.due_at, rabbitdelay_tasks.created_at + 60 * 1000) THEN NULL ELSE rabbitdelay_tasks.resend_at END,
  claimed_until = CASE WHEN rabbitdelay_tasks.due_at < LEAST(excluded.due_at, rabbitdelay_tasks.created_at + 60 * 1000) THEN 0 ELSE rabbitdelay_tasks.claimed_until END,
  due_at = GREATEST(rabbitdelay_tasks.due_at, LEAST(excluded.due_at, rabbitdelay_tasks.created_at + 60 * 1000));

-- refuse: cancel the new task while a task with the key is running, and for an hour after one was done
UPDATE rabbitdelay_tasks SET status = 'cancelled', finished_at = CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint), updated_at = CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)
WHERE id = :id AND status = 'pending' AND EXISTS (SELECT 1 FROM rabbitdelay_tasks AS earlier WHERE earlier.unique_key = rabbitdelay_tasks.unique_key
  AND (earlier.status = 'running' OR earlier.status = 'done' AND earlier.finished_at > CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint) - 60 * 60 * 1000));

-- which task has the key
SELECT id, version FROM rabbitdelay_tasks WHERE unique_key = 'reindex-42' AND status = 'pending';

-- reschedule: to an hour from now
UPDATE rabbitdelay_tasks SET
  due_at = CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint) + 60 * 60 * 1000, updated_at = CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint),
  version = version + 1, attempts = 0, last_error = NULL, finished_at = NULL,
  sent_at = NULL, sends = 0, send_failures = 0, resend_at = NULL, claimed_until = 0
WHERE id = 'order-42-expire' AND status = 'pending';

-- run now
UPDATE rabbitdelay_tasks SET
  due_at = CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint), updated_at = CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint),
  version = version + 1, attempts = 0, last_error = NULL, finished_at = NULL,
  sent_at = NULL, sends = 0, send_failures = 0, resend_at = NULL, claimed_until = 0
WHERE id = 'order-42-expire' AND status = 'pending';

-- cancel
UPDATE rabbitdelay_tasks SET
  status = 'cancelled', finished_at = CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint), updated_at = CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)
WHERE id = 'order-42-expire' AND status = 'pending';

-- revive: a failed task, due now
UPDATE rabbitdelay_tasks SET
  status = 'pending', due_at = CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint), updated_at = CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint),
  version = version + 1, attempts = 0, last_error = NULL, finished_at = NULL,
  sent_at = NULL, sends = 0, send_failures = 0, resend_at = NULL, claimed_until = 0
WHERE id = 'order-42-expire' AND status = 'failed';

-- consume: the first statement in the transaction of the effect
UPDATE rabbitdelay_tasks SET
  status = 'done', finished_at = CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint), updated_at = CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)
WHERE id = :id AND version = :version AND created_at = :created AND status = 'pending' AND due_at <= :due
  AND (expires_after IS NULL OR expires_after > CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint) - CASE WHEN due_at = 0 THEN created_at ELSE due_at END);

-- consume from an exchange: the first statement in the transaction of the effect
UPDATE rabbitdelay_tasks SET
  status = 'done', finished_at = CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint), updated_at = CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)
WHERE id = :id AND version = :version AND created_at = :created AND status IN ('pending', 'running', 'failed') AND due_at <= :due
  AND (expires_after IS NULL OR expires_after > CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint) - CASE WHEN due_at = 0 THEN created_at ELSE due_at END);

-- record the effect: the second statement, for the queue from which the message was received
INSERT INTO rabbitdelay_effects (task_id, created_at, version, queue, done_at)
SELECT id, created_at, version, :queue, CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint) FROM rabbitdelay_tasks
WHERE id = :id AND version = :version AND created_at = :created AND status = 'done' AND due_at <= :due
FOR SHARE ON CONFLICT DO NOTHING;

-- record the effect of a later attempt: if "record the effect" inserted no row, because an attempt in this queue has failed or died
UPDATE rabbitdelay_effects SET done_at = CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint), updated_at = CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)
FROM (SELECT id FROM rabbitdelay_tasks
  WHERE id = :id AND version = :version AND created_at = :created AND status = 'done' AND due_at <= :due FOR SHARE) AS task
WHERE task_id = task.id AND version = :version AND created_at = :created AND queue = :queue
  AND done_at IS NULL AND lease_until <= CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint);

-- fail: the last attempt has failed and was rolled back
UPDATE rabbitdelay_tasks SET
  status = 'failed', attempts = :attempt, last_error = :error, finished_at = CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint), updated_at = CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)
WHERE id = :id AND version = :version AND created_at = :created AND status = 'pending';

-- pause a queue: for an exchange, write exchange in place of queue
INSERT INTO rabbitdelay_destinations (queue, paused_at, paused_by)
VALUES ('orders.expire', CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint), 'me')
ON CONFLICT (queue, exchange) DO UPDATE SET paused_at = excluded.paused_at, paused_by = excluded.paused_by
WHERE rabbitdelay_destinations.paused_at IS NULL;

-- resume
UPDATE rabbitdelay_destinations SET paused_at = NULL, paused_by = '', spread_due = 0, spread_until = 0, spread_rate = 0, spread_free = 0
WHERE queue = 'orders.expire' AND exchange = '' AND paused_at IS NOT NULL;

-- list: what is due within the next hour
SELECT id, due_at, version, attempts, last_error FROM rabbitdelay_tasks
WHERE queue = 'orders.expire' AND status = 'pending' AND due_at < CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint) + 60 * 60 * 1000
ORDER BY due_at, id LIMIT 100;

-- count
SELECT queue, status, COUNT(*) FROM rabbitdelay_tasks GROUP BY queue, status ORDER BY queue, status;

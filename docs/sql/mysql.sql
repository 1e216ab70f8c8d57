-- The statements of docs/tasks.md for MySQL and MariaDB; :names are parameters.

-- schedule: 30 minutes from now
INSERT INTO rabbitdelay_tasks (id, queue, due_at, body)
VALUES ('order-42-expire', 'orders.expire', TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000 + 30 * 60 * 1000, '{"order":42}');

-- schedule to an exchange, with headers
INSERT INTO rabbitdelay_tasks (id, exchange, routing_key, due_at, body, content_type, headers)
VALUES ('post-7', 'events', 'post.publish', TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000 + 24 * 60 * 60 * 1000, '{"post":7}', 'application/json', '{"tenant":"blue"}');

-- schedule, or replace the task that has this id: 45 minutes from now
INSERT INTO rabbitdelay_tasks (id, queue, due_at, body, updated_at)
VALUES ('order-42-expire', 'orders.expire', TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000 + 45 * 60 * 1000, '{"order":42}', TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000)
ON DUPLICATE KEY UPDATE
  queue = VALUES(queue), exchange = VALUES(exchange), routing_key = VALUES(routing_key), due_at = VALUES(due_at), body = VALUES(body),
  content_type = VALUES(content_type), type = VALUES(type), correlation_id = VALUES(correlation_id), priority = VALUES(priority), expires_after = VALUES(expires_after), unique_key = VALUES(unique_key), headers = VALUES(headers), created_at = VALUES(created_at), updated_at = VALUES(updated_at),
  version = version + 1, status = 'pending', attempts = 0, last_error = NULL, finished_at = NULL,
  sent_at = NULL, sends = 0, send_failures = 0, resend_at = NULL, claimed_until = 0;

-- schedule with a unique key, keep: 5 seconds from now, unless a task with the key is pending
INSERT INTO rabbitdelay_tasks (id, unique_key, queue, due_at, body, updated_at)
VALUES (:id, 'reindex-42', 'search.reindex', TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000 + 5 * 1000, '{"product":42}', TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000)
ON DUPLICATE KEY UPDATE
  updated_at = GREATEST(updated_at + 1, VALUES(updated_at));

-- schedule with a unique key, replace: replace the pending task with the key
INSERT INTO rabbitdelay_tasks (id, unique_key, queue, due_at, body, updated_at)
VALUES (:id, 'reindex-42', 'search.reindex', TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000 + 5 * 1000, '{"product":42}', TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000)
ON DUPLICATE KEY UPDATE
  queue = VALUES(queue), exchange = VALUES(exchange), routing_key = VALUES(routing_key), due_at = VALUES(due_at), body = VALUES(body),
  content_type = VALUES(content_type), type = VALUES(type), correlation_id = VALUES(correlation_id), priority = VALUES(priority), expires_after = VALUES(expires_after), headers = VALUES(headers), created_at = VALUES(created_at), updated_at = VALUES(updated_at),
  version = version + 1, attempts = 0, last_error = NULL, finished_at = NULL,
  sent_at = NULL, sends = 0, send_failures = 0, resend_at = NULL, claimed_until = 0;

-- schedule with a unique key, push back: at most a minute after the pending task was scheduled
INSERT INTO rabbitdelay_tasks (id, unique_key, queue, due_at, body, updated_at)
VALUES (:id, 'reindex-42', 'search.reindex', TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000 + 5 * 1000, '{"product":42}', TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000)
ON DUPLICATE KEY UPDATE
  updated_at = GREATEST(updated_at + 1, VALUES(updated_at)),
  version = IF(due_at < LEAST(VALUES(due_at), created_at + 60 * 1000), version + 1, version),
  attempts = IF(due_at < LEAST(VALUES(due_at), created_at + 60 * 1000), 0, attempts),
  last_error = IF(due_at < LEAST(VALUES(due_at), created_at + 60 * 1000), NULL, last_error),
  sent_at = IF(due_at < LEAST(VALUES(due_at), created_at + 60 * 1000), NULL, sent_at),
  sends = IF(due_at < LEAST(VALUES(due_at), created_at + 60 * 1000), 0, sends),
  send_failures = IF(due_at < LEAST(VALUES(due_at), created_at + 60 * 1000), 0, send_failures),
  resend_at = IF(due_at < LEAST(VALUES(due_at), created_at + 60 * 1000), NULL, resend_at),
  claimed_until = IF(due_at < LEAST(VALUES(due_at), created_at + 60 * 1000), 0, claimed_until),
  due_at = GREATEST(due_at, LEAST(VALUES(due_at), created_at + 60 * 1000));

-- refuse: cancel the new task while a task with the key is running, and for an hour after one was done
UPDATE rabbitdelay_tasks AS task JOIN rabbitdelay_tasks AS earlier ON earlier.unique_key = task.unique_key
  AND (earlier.status = 'running' OR earlier.status = 'done' AND earlier.finished_at > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000 - 60 * 60 * 1000)
SET task.status = 'cancelled', task.finished_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000, task.updated_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000
WHERE task.id = :id AND task.status = 'pending';

-- which task has the key
SELECT id, version FROM rabbitdelay_tasks WHERE pending_key = 'reindex-42';

-- reschedule: to an hour from now
UPDATE rabbitdelay_tasks SET
  due_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000 + 60 * 60 * 1000, updated_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000,
  version = version + 1, attempts = 0, last_error = NULL, finished_at = NULL,
  sent_at = NULL, sends = 0, send_failures = 0, resend_at = NULL, claimed_until = 0
WHERE id = 'order-42-expire' AND status = 'pending';

-- run now
UPDATE rabbitdelay_tasks SET
  due_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000, updated_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000,
  version = version + 1, attempts = 0, last_error = NULL, finished_at = NULL,
  sent_at = NULL, sends = 0, send_failures = 0, resend_at = NULL, claimed_until = 0
WHERE id = 'order-42-expire' AND status = 'pending';

-- cancel
UPDATE rabbitdelay_tasks SET
  status = 'cancelled', finished_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000, updated_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000
WHERE id = 'order-42-expire' AND status = 'pending';

-- revive: a failed task, due now
UPDATE rabbitdelay_tasks SET
  status = 'pending', due_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000, updated_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000,
  version = version + 1, attempts = 0, last_error = NULL, finished_at = NULL,
  sent_at = NULL, sends = 0, send_failures = 0, resend_at = NULL, claimed_until = 0
WHERE id = 'order-42-expire' AND status = 'failed';

-- consume: the first statement in the transaction of the effect
UPDATE rabbitdelay_tasks SET
  status = 'done', finished_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000, updated_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000
WHERE id = :id AND version = :version AND created_at = :created AND status = 'pending' AND due_at <= :due
  AND (expires_after IS NULL OR expires_after > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000 - CASE WHEN due_at = 0 THEN created_at ELSE due_at END);

-- consume from an exchange: the first statement in the transaction of the effect
UPDATE rabbitdelay_tasks SET
  status = 'done', finished_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000, updated_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000
WHERE id = :id AND version = :version AND created_at = :created AND status IN ('pending', 'running', 'failed') AND due_at <= :due
  AND (expires_after IS NULL OR expires_after > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000 - CASE WHEN due_at = 0 THEN created_at ELSE due_at END);

-- record the effect: the second statement, for the queue from which the message was received
INSERT IGNORE INTO rabbitdelay_effects (task_id, created_at, version, queue, done_at)
SELECT id, created_at, version, :queue, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000 FROM rabbitdelay_tasks
WHERE id = :id AND version = :version AND created_at = :created AND status = 'done' AND due_at <= :due;

-- record the effect of a later attempt: if "record the effect" inserted no row, because an attempt in this queue has failed or died
UPDATE rabbitdelay_effects AS effect JOIN rabbitdelay_tasks AS task ON task.id = effect.task_id
SET effect.done_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000, effect.updated_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000
WHERE task.id = :id AND task.version = :version AND task.created_at = :created AND task.status = 'done' AND task.due_at <= :due
  AND effect.version = :version AND effect.created_at = :created AND effect.queue = :queue
  AND effect.done_at IS NULL AND effect.lease_until <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000;

-- fail: the last attempt has failed and was rolled back
UPDATE rabbitdelay_tasks SET
  status = 'failed', attempts = :attempt, last_error = :error, finished_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000, updated_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000
WHERE id = :id AND version = :version AND created_at = :created AND status = 'pending';

-- pause a queue: for an exchange, write exchange in place of queue
INSERT INTO rabbitdelay_destinations (queue, paused_at, paused_by)
VALUES ('orders.expire', TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000, 'me')
ON DUPLICATE KEY UPDATE paused_by = IF(paused_at IS NULL, VALUES(paused_by), paused_by), paused_at = COALESCE(paused_at, VALUES(paused_at));

-- resume
UPDATE rabbitdelay_destinations SET paused_at = NULL, paused_by = '', spread_due = 0, spread_until = 0, spread_rate = 0, spread_free = 0
WHERE queue = 'orders.expire' AND exchange = '' AND paused_at IS NOT NULL;

-- list: what is due within the next hour
SELECT id, due_at, version, attempts, last_error FROM rabbitdelay_tasks
WHERE queue = 'orders.expire' AND status = 'pending' AND due_at < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000 + 60 * 60 * 1000
ORDER BY due_at, id LIMIT 100;

-- count
SELECT queue, status, COUNT(*) FROM rabbitdelay_tasks GROUP BY queue, status ORDER BY queue, status;

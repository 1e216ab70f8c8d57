-- Rows as programs and relays of 0.1.0 leave them; :finished is an hour ago.
INSERT INTO rabbitdelay_tasks (id, queue, due_at, body, type, headers, version, attempts, last_error, created_at, updated_at)
  VALUES ('pending', 'orders.expire', 1795352749000, 'pending', 'expire', '{"k":"v"}', 3, 1, 'the provider was away', 1795352740000, 1795352741000);
INSERT INTO rabbitdelay_tasks (id, queue, due_at, body, version, sent_at, sends, resend_at, created_at, updated_at)
  VALUES ('lost', 'orders.expire', 1795352749000, 'lost', 1, 1795352745000, 1, 1795352869000, 1795352740000, 1795352745000);
INSERT INTO rabbitdelay_tasks (id, queue, due_at, body, status, created_at, updated_at, finished_at)
  VALUES ('done', 'orders.expire', 1795352749000, 'done', 'done', 1795352740000, 1795352749100, :finished);
INSERT INTO rabbitdelay_tasks (id, queue, due_at, body, status, created_at, updated_at, finished_at)
  VALUES ('cancelled', 'orders.expire', 1795352749000, 'cancelled', 'cancelled', 1795352740000, 1795352741000, :finished);
INSERT INTO rabbitdelay_tasks (id, queue, due_at, body, status, attempts, last_error, created_at, updated_at, finished_at)
  VALUES ('failed', 'orders.expire', 1795352749000, 'failed', 'failed', 5, 'no such order', 1795352740000, 1795352749100, :finished);
INSERT INTO rabbitdelay_schedules (name, cron, time_zone, queue, body)
  VALUES ('nightly', '0 0 29 2 *', 'Europe/Berlin', 'orders.expire', 'nightly');
INSERT INTO rabbitdelay_processed (scope, message_id, outcome, processed_at)
  VALUES ('orders.expire', 'm-1', 'done', 1795352749000);

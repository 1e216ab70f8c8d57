-- Names by which tasks are found, any number of them for each task.
CREATE TABLE IF NOT EXISTS rabbitdelay_task_tags (
  tag     TEXT NOT NULL,
  task_id TEXT NOT NULL,
  PRIMARY KEY (tag, task_id)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS rabbitdelay_task_tags_task ON rabbitdelay_task_tags (task_id);
-- Not a foreign key, which SQLite heeds only on connections that ask for it.
CREATE TRIGGER IF NOT EXISTS rabbitdelay_tasks_untag AFTER DELETE ON rabbitdelay_tasks
  BEGIN DELETE FROM rabbitdelay_task_tags WHERE task_id = OLD.id; END;

-- Names by which tasks are found, any number of them for each task.
CREATE TABLE IF NOT EXISTS rabbitdelay_task_tags (
  tag     text COLLATE "C" NOT NULL,
  task_id text COLLATE "C" NOT NULL REFERENCES rabbitdelay_tasks (id) ON DELETE CASCADE,
  PRIMARY KEY (tag, task_id)
);
CREATE INDEX IF NOT EXISTS rabbitdelay_task_tags_task ON rabbitdelay_task_tags (task_id);

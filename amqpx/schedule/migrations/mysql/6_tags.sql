-- Names by which tasks are found, any number of them for each task.
CREATE TABLE IF NOT EXISTS rabbitdelay_task_tags (
  tag     VARCHAR(100) NOT NULL,
  task_id VARCHAR(255) NOT NULL,
  PRIMARY KEY (tag, task_id),
  KEY rabbitdelay_task_tags_task (task_id),
  CONSTRAINT rabbitdelay_task_tags_task FOREIGN KEY (task_id) REFERENCES rabbitdelay_tasks (id) ON DELETE CASCADE
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

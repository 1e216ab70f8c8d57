-- Room in each page for what the relay changes: a claim touches no indexed
-- column, and a row that finds room in its own page needs no new index entries.
ALTER TABLE rabbitdelay_tasks SET (fillfactor = 70);

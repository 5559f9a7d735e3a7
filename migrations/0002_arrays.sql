-- 0002: job arrays; fields: JSON list of the spec fields that differ inside one.
CREATE TABLE arrays (id TEXT PRIMARY KEY, fields TEXT NOT NULL, created_ms INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX jobs_array ON jobs(array_id) WHERE array_id IS NOT NULL;
CREATE INDEX deliveries_next ON deliveries(next_ms) WHERE state='waiting';

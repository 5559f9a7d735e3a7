-- 0001: everything the coordinator remembers. Times are ms since 1970 UTC. A job's public id is 'j' || id.
CREATE TABLE jobs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL, labels TEXT, priority INTEGER NOT NULL,
    spec TEXT NOT NULL, plan TEXT,
    state TEXT NOT NULL, desired TEXT NOT NULL,         -- observed and wanted: never one column
    reason TEXT, detail TEXT,
    version INTEGER NOT NULL DEFAULT 1,                  -- every change adds one; the ETag
    attempt INTEGER NOT NULL DEFAULT 0, restarts INTEGER NOT NULL DEFAULT 0,
    ranks INTEGER NOT NULL, device TEXT NOT NULL,
    not_before_ms INTEGER NOT NULL DEFAULT 0,            -- back-off
    created_ms INTEGER NOT NULL, queued_ms INTEGER, started_ms INTEGER, ended_ms INTEGER,
    run_ms INTEGER NOT NULL DEFAULT 0,                   -- spent in finished attempts
    last_step INTEGER NOT NULL DEFAULT 0, max_steps INTEGER NOT NULL DEFAULT 0,
    checkpoint TEXT, checkpoint_step INTEGER, checkpoint_ms INTEGER,
    summary TEXT, output_dir TEXT, array_id TEXT, cloned_from INTEGER
);
CREATE INDEX jobs_state ON jobs(state);
CREATE TABLE attempts (
    job INTEGER NOT NULL, n INTEGER NOT NULL,
    nonce TEXT NOT NULL, pid INTEGER, start_time INTEGER, boot_id TEXT,    -- nonce before exec; the rest right after
    state TEXT NOT NULL, reason TEXT, detail TEXT, rank INTEGER, code INTEGER, signal INTEGER,
    first_step INTEGER, last_step INTEGER, resumed_from TEXT, slots TEXT,
    started_ms INTEGER NOT NULL, ended_ms INTEGER, last_seq INTEGER NOT NULL DEFAULT 0, bad_frames INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (job, n)
) WITHOUT ROWID;
CREATE TABLE ranks (
    job INTEGER NOT NULL, attempt INTEGER NOT NULL, rank INTEGER NOT NULL,
    pid INTEGER, ready INTEGER NOT NULL DEFAULT 0, step INTEGER, code INTEGER, signal INTEGER, reason TEXT,
    PRIMARY KEY (job, attempt, rank)
) WITHOUT ROWID;
CREATE TABLE metric_names (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
-- data: pairs of (little-endian u16 name id, f64 value), packed
CREATE TABLE metrics (
    job INTEGER NOT NULL, rank INTEGER NOT NULL, attempt INTEGER NOT NULL, seq INTEGER NOT NULL,
    step INTEGER NOT NULL, ms INTEGER NOT NULL, data BLOB NOT NULL,
    PRIMARY KEY (job, rank, attempt, seq)
) WITHOUT ROWID;
CREATE TABLE events (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    job INTEGER NOT NULL DEFAULT 0, attempt INTEGER, seq INTEGER, ms INTEGER NOT NULL,
    kind TEXT NOT NULL, level TEXT NOT NULL, data TEXT NOT NULL
);
CREATE UNIQUE INDEX events_seq ON events(job, attempt, seq) WHERE seq IS NOT NULL;
CREATE INDEX events_job ON events(job, id);
CREATE TABLE checkpoints (
    job INTEGER NOT NULL, step INTEGER NOT NULL, path TEXT NOT NULL, attempt INTEGER NOT NULL, ms INTEGER NOT NULL,
    PRIMARY KEY (job, step)
) WITHOUT ROWID;
CREATE TABLE tokens (
    id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, hash TEXT NOT NULL UNIQUE, scope TEXT NOT NULL, kind TEXT NOT NULL,
    created_ms INTEGER NOT NULL, expires_ms INTEGER, parent INTEGER
);
CREATE TABLE audit (
    id INTEGER PRIMARY KEY AUTOINCREMENT, ms INTEGER NOT NULL, who TEXT NOT NULL, peer TEXT NOT NULL, method TEXT NOT NULL,
    path TEXT NOT NULL, status INTEGER NOT NULL, note TEXT
);
CREATE TABLE idempotency (
    key TEXT NOT NULL, who TEXT NOT NULL, body_hash TEXT NOT NULL, job INTEGER NOT NULL, created_ms INTEGER NOT NULL,
    status INTEGER NOT NULL, answer TEXT NOT NULL,
    PRIMARY KEY (key, who)
) WITHOUT ROWID;
CREATE TABLE webhooks (
    id INTEGER PRIMARY KEY AUTOINCREMENT, url TEXT NOT NULL, secret TEXT NOT NULL, kinds TEXT NOT NULL,
    active INTEGER NOT NULL DEFAULT 1, created_ms INTEGER NOT NULL
);
CREATE TABLE deliveries (
    id INTEGER PRIMARY KEY AUTOINCREMENT, webhook INTEGER NOT NULL, event INTEGER NOT NULL, body TEXT NOT NULL,
    tries INTEGER NOT NULL DEFAULT 0, next_ms INTEGER NOT NULL, state TEXT NOT NULL DEFAULT 'waiting', last_error TEXT,
    UNIQUE (webhook, event)
);

-- When each commit began to count here, and who brought it: a commit's own clock is its author's, and says when it was written.
CREATE TABLE applied (
    sequence  INTEGER PRIMARY KEY,
    commit_id TEXT NOT NULL,
    at        INTEGER NOT NULL,
    actor     TEXT NOT NULL
) STRICT;
CREATE INDEX applied_at ON applied (at);
CREATE INDEX applied_commit ON applied (commit_id);

-- Deployments that the server took back by itself although the remote that it follows says otherwise. Counts as long as the
-- deployment is at that revision.
CREATE TABLE gone_back (
    deployment BLOB PRIMARY KEY,
    revision   INTEGER NOT NULL,
    failed     INTEGER NOT NULL,
    at         INTEGER NOT NULL,
    why        TEXT NOT NULL
) STRICT, WITHOUT ROWID;

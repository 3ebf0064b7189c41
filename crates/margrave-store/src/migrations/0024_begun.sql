-- What somebody began to do, written in the transaction that does it, until the audit log has its entry. What is here when the
-- server starts was cut off, and goes into the log then.
CREATE TABLE audit_begun (
    id         INTEGER NOT NULL PRIMARY KEY,
    at         INTEGER NOT NULL,
    actor      TEXT NOT NULL,
    role       TEXT,
    token      TEXT,
    source     TEXT NOT NULL,
    way        TEXT NOT NULL,
    action     TEXT NOT NULL,
    subject    TEXT NOT NULL,
    detail     TEXT NOT NULL,
    git_commit TEXT
) STRICT;

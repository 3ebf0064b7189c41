-- Operators' tokens have a role, an end and a history; sessions belong to the token that began them.
CREATE TABLE access_token (
    -- The beginning of the hash, to name the token by. The secret has 256 random bits, of which this tells nothing.
    id         TEXT NOT NULL PRIMARY KEY,
    hash       BLOB NOT NULL UNIQUE CHECK (length(hash) = 32),
    name       TEXT NOT NULL,
    role       TEXT NOT NULL CHECK (role IN ('viewer', 'operator', 'admin')),
    created_at INTEGER NOT NULL,
    created_by TEXT NOT NULL,
    expires_at INTEGER,
    used_at    INTEGER,
    revoked_at INTEGER
) STRICT;
-- Whoever had a token until now could do everything.
INSERT INTO access_token (id, hash, name, role, created_at, created_by)
    SELECT lower(hex(substr(hash, 1, 6))), hash, name, 'admin', created_at, 'server' FROM operator_token;
DROP TABLE operator_token;
ALTER TABLE access_token RENAME TO operator_token;

-- It is not known which token began the sessions of before: their holders sign in again.
DROP TABLE session;
CREATE TABLE session (
    hash       BLOB NOT NULL PRIMARY KEY CHECK (length(hash) = 32),
    token      TEXT NOT NULL REFERENCES operator_token (id) ON DELETE CASCADE,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX session_token ON session (token, created_at);

-- What operators did and were refused. Nothing here is ever changed or deleted.
CREATE TABLE audit (
    sequence   INTEGER NOT NULL PRIMARY KEY,
    at         INTEGER NOT NULL,
    actor      TEXT NOT NULL,
    role       TEXT,
    token      TEXT,
    source     TEXT NOT NULL,
    way        TEXT NOT NULL,
    action     TEXT NOT NULL,
    subject    TEXT NOT NULL,
    outcome    TEXT NOT NULL,
    detail     TEXT NOT NULL,
    git_commit TEXT,
    -- SHA-256 over the hash of the entry before and all fields of this one.
    hash       BLOB NOT NULL CHECK (length(hash) = 32)
) STRICT;
CREATE INDEX audit_actor ON audit (actor, sequence);
CREATE INDEX audit_subject ON audit (subject, sequence);
CREATE INDEX audit_at ON audit (at);
CREATE TRIGGER audit_unchanged BEFORE UPDATE ON audit
    BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;
CREATE TRIGGER audit_undeleted BEFORE DELETE ON audit
    BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;
-- Also keeps REPLACE from deleting what it stands in the place of.
CREATE TRIGGER audit_appended BEFORE INSERT ON audit
    WHEN NEW.sequence IS NOT (SELECT coalesce(max(sequence), 0) + 1 FROM audit)
    BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;

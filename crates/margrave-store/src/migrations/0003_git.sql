-- Clients that have a Git repository of their own. What it holds is here, so that the repository on disk can be
-- made from this at any time, commit for commit.

CREATE TABLE git_repository (
    client TEXT NOT NULL PRIMARY KEY REFERENCES client (id),
    since  INTEGER NOT NULL,
    -- How many versions are kept in git_version.
    kept   INTEGER NOT NULL,
    -- The repository was on disk once: if it is not any more, somebody took it away.
    made   INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

-- Names that may set themselves to Git, because their join token said so; they need not have joined yet.
CREATE TABLE git_grant (
    client TEXT NOT NULL PRIMARY KEY
) STRICT, WITHOUT ROWID;

CREATE TABLE git_token (
    hash       BLOB NOT NULL PRIMARY KEY CHECK (length(hash) = 32),
    client     TEXT NOT NULL REFERENCES git_repository (client) ON DELETE CASCADE,
    holder     TEXT NOT NULL CHECK (holder IN ('operator', 'device')),
    created_at INTEGER NOT NULL,
    -- Null: until it is replaced.
    expires_at INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX git_token_client ON git_token (client, created_at);

-- One commit each.
CREATE TABLE git_version (
    client  TEXT NOT NULL REFERENCES git_repository (client) ON DELETE CASCADE,
    version INTEGER NOT NULL,
    at      INTEGER NOT NULL,
    -- The exact body of the manifest.
    body    BLOB NOT NULL,
    PRIMARY KEY (client, version)
) STRICT;

-- Which document an assignment had from one version on; `until` is the first version that no longer has it.
CREATE TABLE git_document (
    client     TEXT NOT NULL REFERENCES git_repository (client) ON DELETE CASCADE,
    assignment BLOB NOT NULL,
    since      INTEGER NOT NULL,
    until      INTEGER,
    digest     BLOB NOT NULL REFERENCES blob (digest),
    PRIMARY KEY (client, assignment, since)
) STRICT, WITHOUT ROWID;
CREATE INDEX git_document_digest ON git_document (digest);
CREATE INDEX git_document_since ON git_document (client, since);
CREATE INDEX git_document_until ON git_document (client, until);

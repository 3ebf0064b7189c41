-- Where packages come from: registries and what opens them, repositories whose tags are watched, and what their
-- registries still have of the packages in the catalog.
CREATE TABLE registry (
    host       TEXT NOT NULL PRIMARY KEY,
    -- Without TLS; only for this machine.
    plain      INTEGER NOT NULL,
    -- PEM.
    authority  TEXT,
    -- A secret without a user is a token.
    user       TEXT,
    secret     TEXT,
    changed_at INTEGER NOT NULL,
    changed_by TEXT NOT NULL
) STRICT;

CREATE TABLE watch (
    repository TEXT NOT NULL PRIMARY KEY,
    pattern    TEXT NOT NULL,
    every_ms   INTEGER NOT NULL,
    added_at   INTEGER NOT NULL,
    added_by   TEXT NOT NULL,
    looked_at  INTEGER,
    next_at    INTEGER NOT NULL,
    -- Turns in a row that did not work, and why the last did not.
    failures   INTEGER NOT NULL DEFAULT 0,
    trouble    TEXT
) STRICT;

CREATE TABLE watched_tag (
    repository TEXT NOT NULL REFERENCES watch (repository) ON DELETE CASCADE,
    tag        TEXT NOT NULL,
    digest     BLOB NOT NULL,
    state      TEXT NOT NULL,
    -- Of the package that it holds.
    package    TEXT,
    -- Why it holds none that can be added.
    reason     TEXT,
    looked_at  INTEGER NOT NULL,
    PRIMARY KEY (repository, tag)
) STRICT;

CREATE TABLE package_origin (
    id        TEXT NOT NULL,
    version   TEXT NOT NULL,
    looked_at INTEGER NOT NULL,
    -- JSON.
    warnings  TEXT NOT NULL,
    PRIMARY KEY (id, version),
    FOREIGN KEY (id, version) REFERENCES package (id, version) ON DELETE CASCADE
) STRICT;

-- The first schema. Times are milliseconds since 1970. Versions and sequences are 64-bit unsigned in the
-- protocol and 63-bit here: the conversion is checked, and what does not fit is refused (see column.rs).
-- Digests are 32 raw bytes, UUIDs 16.

CREATE TABLE meta (
    key   TEXT NOT NULL PRIMARY KEY,
    value BLOB NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE client (
    id                 TEXT NOT NULL PRIMARY KEY,
    standing           TEXT NOT NULL CHECK (standing IN ('accepted', 'retired')),
    joined_at          INTEGER NOT NULL,
    svid_serial        TEXT,
    svid_serial_before TEXT,
    svid_not_after     INTEGER,
    -- The highest manifest version that the client said it holds: after a restored backup it can be above ours.
    version_claimed    INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

-- Beside the client, because it changes with every poll and the rest hardly ever.
CREATE TABLE contact (
    client TEXT NOT NULL PRIMARY KEY REFERENCES client (id),
    at     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE manifest (
    client      TEXT NOT NULL PRIMARY KEY REFERENCES client (id),
    version     INTEGER NOT NULL CHECK (version >= 1),
    body        BLOB NOT NULL,
    bundle      BLOB,
    bundle_size INTEGER
) STRICT;

-- Content-addressed and immutable: documents and bundles.
CREATE TABLE blob (
    digest BLOB NOT NULL PRIMARY KEY CHECK (length(digest) = 32),
    bytes  BLOB NOT NULL
) STRICT;

-- What a client may fetch. `until` is the version that no longer has it; null while it is in the manifest.
CREATE TABLE document_reference (
    client     TEXT NOT NULL REFERENCES client (id),
    assignment BLOB NOT NULL,
    digest     BLOB NOT NULL REFERENCES blob (digest),
    size       INTEGER,
    until      INTEGER,
    PRIMARY KEY (client, assignment, digest)
) STRICT, WITHOUT ROWID;
CREATE INDEX document_reference_digest ON document_reference (digest);

CREATE TABLE bundle_reference (
    client TEXT NOT NULL REFERENCES client (id),
    digest BLOB NOT NULL REFERENCES blob (digest),
    until  INTEGER,
    PRIMARY KEY (client, digest)
) STRICT, WITHOUT ROWID;
CREATE INDEX bundle_reference_digest ON bundle_reference (digest);

CREATE TABLE join_token (
    hash       BLOB NOT NULL PRIMARY KEY CHECK (length(hash) = 32),
    client     TEXT NOT NULL,
    labels     TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    created_by TEXT NOT NULL,
    expires_at INTEGER NOT NULL,
    used_at    INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX join_token_client ON join_token (client);

CREATE TABLE device (
    client          TEXT NOT NULL REFERENCES client (id),
    device          TEXT NOT NULL,
    created_at      INTEGER NOT NULL,
    -- The exact body that the device sent; null until it has.
    capabilities    BLOB,
    capabilities_at INTEGER,
    simulated       INTEGER NOT NULL DEFAULT 0,
    -- How often something changed that decides placement and that the manifest has not followed yet.
    unsettled       INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (client, device)
) STRICT;
CREATE INDEX device_unsettled ON device (client, device) WHERE unsettled > 0;

CREATE TABLE label (
    client TEXT NOT NULL,
    device TEXT NOT NULL,
    key    TEXT NOT NULL,
    value  TEXT NOT NULL,
    PRIMARY KEY (client, device, key),
    FOREIGN KEY (client, device) REFERENCES device (client, device) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;
CREATE INDEX label_pair ON label (key, value, client, device);

CREATE TABLE package (
    id          TEXT NOT NULL,
    version     TEXT NOT NULL,
    reference   TEXT NOT NULL,
    digest      BLOB NOT NULL,
    -- The exact bytes of the description.
    description BLOB NOT NULL,
    -- Manifest digest behind each component's reference when the package was added (PK-053), as JSON.
    pins        TEXT NOT NULL,
    added_at    INTEGER NOT NULL,
    added_by    TEXT NOT NULL,
    PRIMARY KEY (id, version)
) STRICT;

CREATE TABLE package_resource (
    id         TEXT NOT NULL,
    version    TEXT NOT NULL,
    path       TEXT NOT NULL,
    media_type TEXT NOT NULL,
    bytes      BLOB NOT NULL,
    PRIMARY KEY (id, version, path),
    FOREIGN KEY (id, version) REFERENCES package (id, version) ON DELETE CASCADE
) STRICT;

CREATE TABLE deployment (
    id         BLOB NOT NULL PRIMARY KEY CHECK (length(id) = 16),
    name       TEXT NOT NULL,
    -- No longer wanted anywhere; stays until every device said that it is gone.
    removed    INTEGER NOT NULL DEFAULT 0,
    package    TEXT NOT NULL,
    version    TEXT NOT NULL,
    profile    TEXT,
    answers    TEXT NOT NULL,
    targets    TEXT NOT NULL,
    revision   INTEGER NOT NULL CHECK (revision >= 1),
    changed_at INTEGER NOT NULL,
    changed_by TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX deployment_name ON deployment (name) WHERE removed = 0;
CREATE INDEX deployment_package ON deployment (package, version);

-- What each deployment was at each revision, so that it can be reverted to; also of those that are gone. By name,
-- because a name that is taken again goes on counting where it ended.
CREATE TABLE deployment_revision (
    name       TEXT NOT NULL,
    revision   INTEGER NOT NULL CHECK (revision >= 1),
    deployment BLOB NOT NULL,
    -- This revision is the removal; the rest says what was removed.
    removed    INTEGER NOT NULL,
    package    TEXT NOT NULL,
    version    TEXT NOT NULL,
    profile    TEXT,
    answers    TEXT NOT NULL,
    targets    TEXT NOT NULL,
    changed_at INTEGER NOT NULL,
    changed_by TEXT NOT NULL,
    PRIMARY KEY (name, revision)
) STRICT;

-- Targets that were left out, and why.
CREATE TABLE misfit (
    deployment BLOB NOT NULL REFERENCES deployment (id) ON DELETE CASCADE,
    client     TEXT NOT NULL,
    device     TEXT NOT NULL,
    reasons    TEXT NOT NULL,
    -- 1 while it may still fit: nobody knows yet what the device is.
    temporary  INTEGER NOT NULL CHECK (temporary IN (0, 1)),
    PRIMARY KEY (deployment, client, device)
) STRICT, WITHOUT ROWID;

-- One deployment on one device. It outlives the deployment: until the device said that it is gone
-- (wanted = 0), and afterwards for its history (archived = 1).
CREATE TABLE assignment (
    id              BLOB NOT NULL PRIMARY KEY CHECK (length(id) = 16),
    client          TEXT NOT NULL REFERENCES client (id),
    device          TEXT NOT NULL,
    deployment      BLOB NOT NULL,
    deployment_name TEXT NOT NULL,
    package         TEXT NOT NULL,
    version         TEXT NOT NULL,
    profile         TEXT NOT NULL,
    wanted          INTEGER NOT NULL,
    archived        INTEGER NOT NULL DEFAULT 0,
    document        BLOB NOT NULL,
    -- Manifest versions: where it last came in, and where it last changed (MI-G2-109).
    wanted_since    INTEGER NOT NULL,
    changed_version INTEGER NOT NULL,
    changed_at      INTEGER NOT NULL,
    -- The newest that the device said; null before it said anything in this life.
    observed        TEXT,
    adopted         INTEGER,
    report          TEXT,
    received_at     INTEGER,
    observed_at     INTEGER,
    was_installed   INTEGER NOT NULL DEFAULT 0,
    -- What follows from the columns above (assignment.rs), kept so that fleets can be counted.
    state           TEXT NOT NULL,
    verdict         INTEGER NOT NULL CHECK (verdict BETWEEN 0 AND 2)
) STRICT;
CREATE INDEX assignment_device ON assignment (client, device) WHERE archived = 0;
CREATE INDEX assignment_deployment ON assignment (deployment) WHERE archived = 0;
CREATE INDEX assignment_name ON assignment (deployment_name, client, device);
CREATE INDEX assignment_state ON assignment (state) WHERE archived = 0;
CREATE INDEX assignment_archived ON assignment (max(changed_at, coalesce(received_at, 0))) WHERE archived = 1;

-- Every report that was new, also those that came too late to change anything.
CREATE TABLE transition (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    assignment  BLOB NOT NULL REFERENCES assignment (id),
    adopted     INTEGER NOT NULL,
    sequence    INTEGER,
    state       TEXT NOT NULL,
    at          INTEGER NOT NULL,
    received_at INTEGER NOT NULL,
    late        INTEGER NOT NULL,
    report      TEXT NOT NULL
) STRICT;
CREATE INDEX transition_assignment ON transition (assignment, id);

CREATE TABLE event (
    sequence   INTEGER PRIMARY KEY AUTOINCREMENT,
    at         INTEGER NOT NULL,
    kind       TEXT NOT NULL,
    actor      TEXT NOT NULL,
    client     TEXT,
    device     TEXT,
    deployment TEXT,
    package    TEXT,
    text       TEXT NOT NULL
) STRICT;
CREATE INDEX event_device ON event (client, device, sequence) WHERE client IS NOT NULL;

CREATE TABLE operator_token (
    hash       BLOB NOT NULL PRIMARY KEY CHECK (length(hash) = 32),
    name       TEXT NOT NULL,
    created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE session (
    hash       BLOB NOT NULL PRIMARY KEY CHECK (length(hash) = 32),
    actor      TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- In which steps a change goes through the devices, as JSON; all at once where nothing is said.
ALTER TABLE deployment ADD COLUMN strategy TEXT;
ALTER TABLE deployment_revision ADD COLUMN strategy TEXT;

-- The rollout of a deployment's newest revision, where it is not all at once.
CREATE TABLE rollout (
    deployment BLOB NOT NULL PRIMARY KEY REFERENCES deployment (id) ON DELETE CASCADE,
    revision   INTEGER NOT NULL,
    -- The revision to go back to, if there is one.
    before     INTEGER,
    -- How many devices it began with; parts in percent are parts of these.
    size       INTEGER NOT NULL,
    -- How far it came: the batch that is under way, and since when that is good.
    batch      INTEGER NOT NULL,
    good_since INTEGER,
    state      TEXT NOT NULL CHECK (state IN ('running', 'paused', 'halted', 'reverting', 'aborted', 'done')),
    why        TEXT,
    begun_at   INTEGER NOT NULL,
    changed_at INTEGER NOT NULL,
    changed_by TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- The devices that a rollout takes the revision to, in their order. Who came later stands at the end.
CREATE TABLE rollout_member (
    deployment  BLOB NOT NULL REFERENCES rollout (deployment) ON DELETE CASCADE,
    client      TEXT NOT NULL,
    device      TEXT NOT NULL,
    place       INTEGER NOT NULL,
    -- When it was given the new revision; null while it waits.
    released_at INTEGER,
    -- It failed, and a person let the rollout go on all the same.
    forgiven    INTEGER NOT NULL DEFAULT 0 CHECK (forgiven IN (0, 1)),
    PRIMARY KEY (deployment, client, device)
) STRICT, WITHOUT ROWID;
CREATE INDEX rollout_member_device ON rollout_member (client, device);

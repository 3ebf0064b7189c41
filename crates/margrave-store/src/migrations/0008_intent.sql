-- Desired state lives in Git: the commit that was applied last is in `meta` under `intent.head`. A deployment knows the commit
-- that made it what it is, and more of what a commit can say.
ALTER TABLE deployment ADD COLUMN overrides TEXT NOT NULL DEFAULT '[]';
ALTER TABLE deployment ADD COLUMN forced TEXT;
ALTER TABLE deployment ADD COLUMN commit_id TEXT;
ALTER TABLE deployment_revision ADD COLUMN overrides TEXT NOT NULL DEFAULT '[]';
ALTER TABLE deployment_revision ADD COLUMN forced TEXT;
ALTER TABLE deployment_revision ADD COLUMN commit_id TEXT;

-- Devices whose labels are in Git, also before they join. The others have the labels that they joined with.
CREATE TABLE device_setting (
    client TEXT NOT NULL,
    device TEXT NOT NULL,
    labels TEXT NOT NULL,
    PRIMARY KEY (client, device)
) STRICT, WITHOUT ROWID;

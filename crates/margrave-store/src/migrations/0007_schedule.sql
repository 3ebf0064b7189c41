-- When devices talk and change: what operators chose for the fleet, a label or a device, and what each client's manifest says.
CREATE TABLE schedule (
    reach      TEXT NOT NULL PRIMARY KEY,
    choice     TEXT NOT NULL,
    changed_at INTEGER NOT NULL,
    changed_by TEXT NOT NULL
) STRICT;
ALTER TABLE manifest ADD COLUMN schedule TEXT;

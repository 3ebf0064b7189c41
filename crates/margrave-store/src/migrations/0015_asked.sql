-- What operators ask of a device itself: to hold changes back for a while, and to look again; and what each client's manifest
-- says of that. The number of a look is the moment at which it was asked for.
CREATE TABLE asked (
    client  TEXT NOT NULL PRIMARY KEY REFERENCES client (id),
    hold    TEXT,
    look    INTEGER NOT NULL DEFAULT 0,
    look_by TEXT
) STRICT;
ALTER TABLE manifest ADD COLUMN asked TEXT;

-- What devices are found by and counted by sites, beside how each does (0012): narrow, so that looking through it costs little,
-- and kept by triggers.
ALTER TABLE device_standing ADD COLUMN site TEXT;
-- Which of the capability sets it has; null until it has told.
ALTER TABLE device_standing ADD COLUMN capability_set INTEGER;
-- What among its capabilities names this one device: its id and its serial number.
ALTER TABLE device_standing ADD COLUMN own TEXT;

-- What devices said they are and can do: every value in lower case, a line each, without what names one device and without what
-- passes. Whole fleets have few of them, so a word is looked for here first.
CREATE TABLE capability_set (
    id      INTEGER PRIMARY KEY,
    words   TEXT NOT NULL UNIQUE,
    devices INTEGER NOT NULL DEFAULT 0
) STRICT;

-- Devices with a site.
CREATE TABLE site_tally (
    site      TEXT NOT NULL,
    condition TEXT NOT NULL,
    count     INTEGER NOT NULL,
    PRIMARY KEY (site, condition)
) STRICT, WITHOUT ROWID;

CREATE VIEW device_told AS
    SELECT client, device,
        (SELECT group_concat(word, char(10)) FROM (SELECT DISTINCT lower(told.atom) AS word FROM json_tree(body) AS told
            WHERE told.atom IS NOT NULL
            AND told.fullkey NOT IN ('$.properties.id', '$.properties.serialNumber', '$."x-margrave-extensions".looked')
            AND told.fullkey NOT LIKE '$."x-margrave-extensions".holds%'
            AND told.fullkey NOT LIKE '$."x-margrave-extensions".cannotLook%' ORDER BY 1)) AS words,
        lower(coalesce(json_extract(body, '$.properties.id'), '') || char(10)
            || coalesce(json_extract(body, '$.properties.serialNumber'), '')) AS own
    FROM (SELECT client, device, iif(json_valid(CAST(capabilities AS TEXT)), CAST(capabilities AS TEXT), 'null') AS body
          FROM device WHERE capabilities IS NOT NULL) AS device;

INSERT INTO capability_set (words) SELECT DISTINCT words FROM device_told WHERE words IS NOT NULL;
DROP TRIGGER device_standing_begins;
DROP TRIGGER device_standing_changes;
DROP TRIGGER device_standing_ends;
UPDATE device_standing SET site = (SELECT value FROM label WHERE label.client = device_standing.client
    AND label.device = device_standing.device AND key = 'site');
UPDATE device_standing SET own = told.own,
        capability_set = (SELECT id FROM capability_set WHERE capability_set.words = told.words)
    FROM device_told AS told WHERE told.client = device_standing.client AND told.device = device_standing.device;
UPDATE capability_set SET devices = (SELECT count(*) FROM device_standing WHERE capability_set = capability_set.id);
INSERT INTO site_tally SELECT site, condition, count(*) FROM device_standing WHERE site IS NOT NULL GROUP BY 1, 2;

CREATE TRIGGER device_standing_begins AFTER INSERT ON device_standing BEGIN
    INSERT INTO device_tally VALUES (NEW.condition, 1) ON CONFLICT DO UPDATE SET count = count + 1;
    INSERT INTO site_tally SELECT NEW.site, NEW.condition, 1 WHERE NEW.site IS NOT NULL
        ON CONFLICT DO UPDATE SET count = count + 1;
END;
CREATE TRIGGER device_standing_changes AFTER UPDATE OF condition ON device_standing
WHEN OLD.condition <> NEW.condition BEGIN
    UPDATE device_tally SET count = count - 1 WHERE condition = OLD.condition;
    INSERT INTO device_tally VALUES (NEW.condition, 1) ON CONFLICT DO UPDATE SET count = count + 1;
END;
CREATE TRIGGER device_standing_moves AFTER UPDATE OF condition, site ON device_standing
WHEN OLD.condition <> NEW.condition OR OLD.site IS NOT NEW.site BEGIN
    UPDATE site_tally SET count = count - 1 WHERE site = OLD.site AND condition = OLD.condition;
    DELETE FROM site_tally WHERE site = OLD.site AND condition = OLD.condition AND count = 0;
    INSERT INTO site_tally SELECT NEW.site, NEW.condition, 1 WHERE NEW.site IS NOT NULL
        ON CONFLICT DO UPDATE SET count = count + 1;
END;
CREATE TRIGGER device_standing_turns AFTER UPDATE OF capability_set ON device_standing
WHEN OLD.capability_set IS NOT NEW.capability_set BEGIN
    UPDATE capability_set SET devices = devices + 1 WHERE id = NEW.capability_set;
    UPDATE capability_set SET devices = devices - 1 WHERE id = OLD.capability_set;
    DELETE FROM capability_set WHERE id = OLD.capability_set AND devices = 0;
END;
CREATE TRIGGER device_standing_ends AFTER DELETE ON device_standing BEGIN
    UPDATE device_tally SET count = count - 1 WHERE condition = OLD.condition;
    UPDATE site_tally SET count = count - 1 WHERE site = OLD.site AND condition = OLD.condition;
    DELETE FROM site_tally WHERE site = OLD.site AND condition = OLD.condition AND count = 0;
    UPDATE capability_set SET devices = devices - 1 WHERE id = OLD.capability_set;
    DELETE FROM capability_set WHERE id = OLD.capability_set AND devices = 0;
END;

-- Its site may have been there before it, and what it told comes with it where it is copied.
DROP TRIGGER device_begins;
CREATE TRIGGER device_begins AFTER INSERT ON device BEGIN
    INSERT INTO device_standing (client, device, condition, site) SELECT client, device, condition,
            (SELECT value FROM label WHERE label.client = now.client AND label.device = now.device AND key = 'site')
        FROM device_now AS now WHERE client = NEW.client AND device = NEW.device
        ON CONFLICT DO UPDATE SET condition = excluded.condition WHERE condition <> excluded.condition;
    INSERT INTO capability_set (words) SELECT words FROM device_told
        WHERE client = NEW.client AND device = NEW.device AND words IS NOT NULL ON CONFLICT DO NOTHING;
    UPDATE device_standing SET own = told.own,
            capability_set = (SELECT id FROM capability_set WHERE capability_set.words = told.words)
        FROM device_told AS told WHERE told.client = NEW.client AND told.device = NEW.device
        AND device_standing.client = NEW.client AND device_standing.device = NEW.device;
END;
CREATE TRIGGER device_tells AFTER UPDATE OF capabilities ON device WHEN OLD.capabilities IS NOT NEW.capabilities BEGIN
    INSERT INTO capability_set (words) SELECT words FROM device_told
        WHERE client = NEW.client AND device = NEW.device AND words IS NOT NULL ON CONFLICT DO NOTHING;
    UPDATE device_standing SET own = (SELECT own FROM device_told AS told
                WHERE told.client = NEW.client AND told.device = NEW.device),
            capability_set = (SELECT id FROM capability_set WHERE words = (SELECT words FROM device_told AS told
                WHERE told.client = NEW.client AND told.device = NEW.device))
        WHERE client = NEW.client AND device = NEW.device;
END;
CREATE TRIGGER label_begins AFTER INSERT ON label WHEN NEW.key = 'site' BEGIN
    UPDATE device_standing SET site = NEW.value WHERE client = NEW.client AND device = NEW.device;
END;
CREATE TRIGGER label_changes AFTER UPDATE OF value ON label WHEN NEW.key = 'site' BEGIN
    UPDATE device_standing SET site = NEW.value WHERE client = NEW.client AND device = NEW.device;
END;
CREATE TRIGGER label_ends AFTER DELETE ON label WHEN OLD.key = 'site' BEGIN
    UPDATE device_standing SET site = NULL WHERE client = OLD.client AND device = OLD.device;
END;

-- Found in the order of devices, without a look at the rows themselves.
DROP INDEX assignment_state;
CREATE INDEX assignment_state ON assignment (state, client, device) WHERE archived = 0;
DROP INDEX assignment_name;
CREATE INDEX assignment_name ON assignment (deployment_name, client, device, archived);

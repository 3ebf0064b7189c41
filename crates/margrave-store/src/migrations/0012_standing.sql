-- How each device does as far as that is written down (silence is a matter of the clock), and assignments counted: kept by
-- triggers, so that looking at a fleet costs what is shown and not what is there.
CREATE TABLE device_standing (
    client    TEXT NOT NULL,
    device    TEXT NOT NULL,
    condition TEXT NOT NULL CHECK (condition IN ('retired', 'failed', 'pending', 'converged')),
    PRIMARY KEY (client, device)
) STRICT, WITHOUT ROWID;
CREATE INDEX device_standing_condition ON device_standing (condition, client, device);

CREATE TABLE device_tally (
    condition TEXT NOT NULL PRIMARY KEY,
    count     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Never those that are archived.
CREATE TABLE assignment_tally (
    deployment BLOB NOT NULL,
    state      TEXT NOT NULL,
    verdict    INTEGER NOT NULL,
    count      INTEGER NOT NULL,
    PRIMARY KEY (deployment, state, verdict)
) STRICT, WITHOUT ROWID;

-- The worst of a device's assignments is at the end of its entries.
DROP INDEX assignment_device;
CREATE INDEX assignment_device ON assignment (client, device, verdict) WHERE archived = 0;
-- Who may be silent: who was not heard of for long, or never.
CREATE INDEX contact_at ON contact (at);
CREATE INDEX device_unheard ON device (client) WHERE capabilities IS NULL;
INSERT OR IGNORE INTO contact (client, at)
    SELECT client, max(capabilities_at) FROM device WHERE capabilities IS NOT NULL GROUP BY client;

-- DeviceRecord::condition says the same.
CREATE VIEW device_now AS
    SELECT device.client, device.device,
        CASE WHEN standing = 'retired' THEN 'retired'
            WHEN worst = 2 THEN 'failed'
            WHEN worst = 1 OR silent_so_far THEN 'pending'
            ELSE 'converged' END AS condition
    FROM (SELECT device.client, device.device, client.standing, device.capabilities IS NULL AS silent_so_far,
              (SELECT coalesce(max(verdict), 0) FROM assignment WHERE assignment.client = device.client
               AND assignment.device = device.device AND archived = 0) AS worst
          FROM device CROSS JOIN client ON client.id = device.client) AS device;

CREATE TRIGGER device_standing_begins AFTER INSERT ON device_standing BEGIN
    INSERT INTO device_tally VALUES (NEW.condition, 1) ON CONFLICT DO UPDATE SET count = count + 1;
END;
CREATE TRIGGER device_standing_changes AFTER UPDATE ON device_standing BEGIN
    UPDATE device_tally SET count = count - 1 WHERE condition = OLD.condition;
    INSERT INTO device_tally VALUES (NEW.condition, 1) ON CONFLICT DO UPDATE SET count = count + 1;
END;
CREATE TRIGGER device_standing_ends AFTER DELETE ON device_standing BEGIN
    UPDATE device_tally SET count = count - 1 WHERE condition = OLD.condition;
END;

INSERT INTO device_standing SELECT client, device, condition FROM device_now;
INSERT INTO assignment_tally SELECT deployment, state, verdict, count(*) FROM assignment WHERE archived = 0 GROUP BY 1, 2, 3;

CREATE TRIGGER device_begins AFTER INSERT ON device BEGIN
    INSERT INTO device_standing SELECT client, device, condition FROM device_now
        WHERE client = NEW.client AND device = NEW.device
        ON CONFLICT DO UPDATE SET condition = excluded.condition WHERE condition <> excluded.condition;
END;
CREATE TRIGGER device_speaks AFTER UPDATE OF capabilities ON device
WHEN (OLD.capabilities IS NULL) <> (NEW.capabilities IS NULL) BEGIN
    UPDATE device_standing SET condition = (SELECT condition FROM device_now AS now
            WHERE now.client = NEW.client AND now.device = NEW.device)
        WHERE client = NEW.client AND device = NEW.device;
    -- Who has said something was heard, also if the power goes before that is written down.
    INSERT OR IGNORE INTO contact (client, at)
        SELECT NEW.client, NEW.capabilities_at WHERE NEW.capabilities_at IS NOT NULL;
END;
CREATE TRIGGER device_ends AFTER DELETE ON device BEGIN
    DELETE FROM device_standing WHERE client = OLD.client AND device = OLD.device;
END;
CREATE TRIGGER client_standing AFTER UPDATE OF standing ON client WHEN OLD.standing <> NEW.standing BEGIN
    UPDATE device_standing SET condition = (SELECT condition FROM device_now AS now
            WHERE now.client = device_standing.client AND now.device = device_standing.device)
        WHERE client = NEW.id;
END;

CREATE TRIGGER assignment_begins AFTER INSERT ON assignment WHEN NEW.archived = 0 BEGIN
    INSERT INTO assignment_tally VALUES (NEW.deployment, NEW.state, NEW.verdict, 1)
        ON CONFLICT DO UPDATE SET count = count + 1;
    UPDATE device_standing SET condition = (SELECT condition FROM device_now AS now
            WHERE now.client = NEW.client AND now.device = NEW.device)
        WHERE client = NEW.client AND device = NEW.device AND condition <> (SELECT condition FROM device_now AS now
            WHERE now.client = NEW.client AND now.device = NEW.device);
END;
CREATE TRIGGER assignment_changes AFTER UPDATE OF archived, state, verdict ON assignment
WHEN OLD.archived <> NEW.archived OR OLD.state <> NEW.state OR OLD.verdict <> NEW.verdict BEGIN
    UPDATE assignment_tally SET count = count - 1
        WHERE OLD.archived = 0 AND deployment = OLD.deployment AND state = OLD.state AND verdict = OLD.verdict;
    INSERT INTO assignment_tally SELECT NEW.deployment, NEW.state, NEW.verdict, 1 WHERE NEW.archived = 0
        ON CONFLICT DO UPDATE SET count = count + 1;
    DELETE FROM assignment_tally
        WHERE deployment = OLD.deployment AND state = OLD.state AND verdict = OLD.verdict AND count = 0;
END;
CREATE TRIGGER assignment_turns AFTER UPDATE OF archived, verdict ON assignment
WHEN OLD.archived <> NEW.archived OR OLD.verdict <> NEW.verdict BEGIN
    UPDATE device_standing SET condition = (SELECT condition FROM device_now AS now
            WHERE now.client = NEW.client AND now.device = NEW.device)
        WHERE client = NEW.client AND device = NEW.device AND condition <> (SELECT condition FROM device_now AS now
            WHERE now.client = NEW.client AND now.device = NEW.device);
END;
CREATE TRIGGER assignment_ends AFTER DELETE ON assignment WHEN OLD.archived = 0 BEGIN
    UPDATE assignment_tally SET count = count - 1
        WHERE deployment = OLD.deployment AND state = OLD.state AND verdict = OLD.verdict;
    DELETE FROM assignment_tally
        WHERE deployment = OLD.deployment AND state = OLD.state AND verdict = OLD.verdict AND count = 0;
    UPDATE device_standing SET condition = (SELECT condition FROM device_now AS now
            WHERE now.client = OLD.client AND now.device = OLD.device)
        WHERE client = OLD.client AND device = OLD.device AND condition <> (SELECT condition FROM device_now AS now
            WHERE now.client = OLD.client AND now.device = OLD.device);
END;

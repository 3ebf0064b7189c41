-- Who is held back by a rollout that is not done, kept by triggers like everything that is counted (0012): what a device was not
-- given yet it cannot be as wanted with.
ALTER TABLE rollout_member ADD COLUMN waits INTEGER NOT NULL DEFAULT 0 CHECK (waits IN (0, 1));
-- The revision that the device has until its turn comes; null where it has none.
ALTER TABLE rollout_member ADD COLUMN keeps INTEGER;
ALTER TABLE assignment ADD COLUMN waits INTEGER NOT NULL DEFAULT 0 CHECK (waits IN (0, 1));
CREATE INDEX rollout_member_waits ON rollout_member (client, device) WHERE waits = 1;
CREATE INDEX rollout_member_turn ON rollout_member (deployment, place) WHERE waits = 1;

-- Whoever it was not meant for any more left it with its settling, so targets are not asked here.
CREATE VIEW rollout_member_now AS
    SELECT member.deployment, member.client, member.device,
        released_at IS NULL AND state <> 'done' AND standing = 'accepted'
            AND NOT EXISTS (SELECT 1 FROM misfit WHERE misfit.deployment = member.deployment
                AND misfit.client = member.client AND misfit.device = member.device AND temporary = 0) AS waits
    FROM rollout_member AS member
    CROSS JOIN rollout ON rollout.deployment = member.deployment
    CROSS JOIN client ON client.id = member.client
    CROSS JOIN device ON device.client = member.client AND device.device = member.device;

-- What assignment_tally counts: who waits for its first revision has no assignment, and is pending all the same.
CREATE VIEW assignment_now AS
    SELECT deployment, state, verdict, waits FROM assignment WHERE archived = 0
    UNION ALL
    SELECT deployment, 'PENDING', 1, 1 FROM rollout_member AS member WHERE waits = 1
        AND NOT EXISTS (SELECT 1 FROM assignment WHERE assignment.client = member.client
            AND assignment.device = member.device AND assignment.deployment = member.deployment AND archived = 0);

-- DeviceRecord::condition says the same.
DROP VIEW device_now;
CREATE VIEW device_now AS
    SELECT device.client, device.device,
        CASE WHEN standing = 'retired' THEN 'retired'
            WHEN worst = 2 THEN 'failed'
            WHEN worst = 1 OR silent_so_far OR blind OR waits THEN 'pending'
            ELSE 'converged' END AS condition
    FROM (SELECT device.client, device.device, client.standing, device.capabilities IS NULL AS silent_so_far,
              device.blind_since IS NOT NULL AS blind,
              EXISTS (SELECT 1 FROM rollout_member AS member WHERE member.client = device.client
                  AND member.device = device.device AND member.waits = 1) AS waits,
              (SELECT coalesce(max(verdict), 0) FROM assignment WHERE assignment.client = device.client
               AND assignment.device = device.device AND archived = 0) AS worst
          FROM device CROSS JOIN client ON client.id = device.client) AS device;

UPDATE rollout_member SET waits = coalesce((SELECT waits FROM rollout_member_now AS now
    WHERE now.deployment = rollout_member.deployment AND now.client = rollout_member.client
    AND now.device = rollout_member.device), 0);
UPDATE rollout_member SET keeps = (SELECT before FROM rollout WHERE rollout.deployment = rollout_member.deployment)
    WHERE waits = 1 AND EXISTS (SELECT 1 FROM assignment WHERE assignment.client = rollout_member.client
        AND assignment.device = rollout_member.device AND assignment.deployment = rollout_member.deployment AND archived = 0);

DROP TRIGGER assignment_begins;
DROP TRIGGER assignment_changes;
DROP TRIGGER assignment_ends;
UPDATE assignment SET waits = 1 WHERE (deployment, client, device) IN
    (SELECT deployment, client, device FROM rollout_member WHERE waits = 1);
DROP TABLE assignment_tally;
-- Never those that are archived.
CREATE TABLE assignment_tally (
    deployment BLOB NOT NULL,
    state      TEXT NOT NULL,
    verdict    INTEGER NOT NULL,
    waits      INTEGER NOT NULL,
    count      INTEGER NOT NULL,
    PRIMARY KEY (deployment, state, verdict, waits)
) STRICT, WITHOUT ROWID;
INSERT INTO assignment_tally SELECT deployment, state, verdict, waits, count(*) FROM assignment_now GROUP BY 1, 2, 3, 4;
UPDATE device_standing SET condition = 'pending' WHERE condition = 'converged'
    AND (client, device) IN (SELECT client, device FROM rollout_member WHERE waits = 1);

CREATE TRIGGER rollout_member_begins AFTER INSERT ON rollout_member BEGIN
    UPDATE rollout_member SET waits = 1 WHERE deployment = NEW.deployment AND client = NEW.client AND device = NEW.device
        AND EXISTS (SELECT 1 FROM rollout_member_now AS now WHERE now.deployment = NEW.deployment
            AND now.client = NEW.client AND now.device = NEW.device AND now.waits = 1);
END;
CREATE TRIGGER rollout_member_released AFTER UPDATE OF released_at ON rollout_member WHEN NEW.released_at IS NOT NULL BEGIN
    UPDATE rollout_member SET waits = 0
        WHERE deployment = NEW.deployment AND client = NEW.client AND device = NEW.device AND waits = 1;
END;
CREATE TRIGGER rollout_ends AFTER UPDATE OF state ON rollout WHEN OLD.state <> NEW.state AND NEW.state = 'done' BEGIN
    UPDATE rollout_member SET waits = 0 WHERE deployment = NEW.deployment AND waits = 1;
END;
CREATE TRIGGER misfit_begins AFTER INSERT ON misfit WHEN NEW.temporary = 0 BEGIN
    UPDATE rollout_member SET waits = 0
        WHERE deployment = NEW.deployment AND client = NEW.client AND device = NEW.device AND waits = 1;
END;
CREATE TRIGGER misfit_changes AFTER UPDATE OF temporary ON misfit WHEN OLD.temporary <> NEW.temporary BEGIN
    UPDATE rollout_member SET waits = 1 - waits WHERE deployment = NEW.deployment AND client = NEW.client
        AND device = NEW.device AND waits <> (SELECT waits FROM rollout_member_now AS now
            WHERE now.deployment = NEW.deployment AND now.client = NEW.client AND now.device = NEW.device);
END;
CREATE TRIGGER misfit_ends AFTER DELETE ON misfit WHEN OLD.temporary = 0 BEGIN
    UPDATE rollout_member SET waits = 1 WHERE deployment = OLD.deployment AND client = OLD.client
        AND device = OLD.device AND waits = 0 AND EXISTS (SELECT 1 FROM rollout_member_now AS now
            WHERE now.deployment = OLD.deployment AND now.client = OLD.client AND now.device = OLD.device AND now.waits = 1);
END;
CREATE TRIGGER client_waits AFTER UPDATE OF standing ON client WHEN OLD.standing <> NEW.standing BEGIN
    UPDATE rollout_member SET waits = 1 - waits WHERE client = NEW.id AND waits <> coalesce((SELECT waits
        FROM rollout_member_now AS now WHERE now.deployment = rollout_member.deployment
        AND now.client = rollout_member.client AND now.device = rollout_member.device), 0);
END;
CREATE TRIGGER device_waits AFTER INSERT ON device BEGIN
    UPDATE rollout_member SET waits = 1 WHERE client = NEW.client AND device = NEW.device AND waits = 0
        AND EXISTS (SELECT 1 FROM rollout_member_now AS now WHERE now.deployment = rollout_member.deployment
            AND now.client = NEW.client AND now.device = NEW.device AND now.waits = 1);
END;
CREATE TRIGGER device_waits_no_more AFTER DELETE ON device BEGIN
    UPDATE rollout_member SET waits = 0 WHERE client = OLD.client AND device = OLD.device AND waits = 1;
END;

-- What follows for the assignment of who begins to wait or does so no more, for what is counted, and for the device.
CREATE TRIGGER rollout_member_turns AFTER UPDATE OF waits ON rollout_member WHEN OLD.waits <> NEW.waits BEGIN
    UPDATE assignment SET waits = NEW.waits
        WHERE deployment_name = (SELECT name FROM deployment WHERE id = NEW.deployment)
        AND client = NEW.client AND device = NEW.device AND deployment = NEW.deployment;
    INSERT INTO assignment_tally SELECT NEW.deployment, 'PENDING', 1, 1, NEW.waits - OLD.waits
        WHERE NOT EXISTS (SELECT 1 FROM assignment WHERE assignment.client = NEW.client
            AND assignment.device = NEW.device AND assignment.deployment = NEW.deployment AND archived = 0)
        ON CONFLICT DO UPDATE SET count = count + excluded.count;
    DELETE FROM assignment_tally
        WHERE deployment = NEW.deployment AND state = 'PENDING' AND verdict = 1 AND waits = 1 AND count = 0;
    UPDATE device_standing SET condition = (SELECT condition FROM device_now AS now
            WHERE now.client = NEW.client AND now.device = NEW.device)
        WHERE client = NEW.client AND device = NEW.device AND condition <> (SELECT condition FROM device_now AS now
            WHERE now.client = NEW.client AND now.device = NEW.device);
END;
CREATE TRIGGER rollout_member_leaves AFTER DELETE ON rollout_member WHEN OLD.waits = 1 BEGIN
    UPDATE assignment SET waits = 0
        WHERE deployment_name = (SELECT name FROM deployment WHERE id = OLD.deployment)
        AND client = OLD.client AND device = OLD.device AND deployment = OLD.deployment;
    UPDATE assignment_tally SET count = count - 1
        WHERE deployment = OLD.deployment AND state = 'PENDING' AND verdict = 1 AND waits = 1
        AND NOT EXISTS (SELECT 1 FROM assignment WHERE assignment.client = OLD.client
            AND assignment.device = OLD.device AND assignment.deployment = OLD.deployment AND archived = 0);
    DELETE FROM assignment_tally WHERE deployment = OLD.deployment AND count = 0;
    UPDATE device_standing SET condition = (SELECT condition FROM device_now AS now
            WHERE now.client = OLD.client AND now.device = OLD.device)
        WHERE client = OLD.client AND device = OLD.device AND condition <> (SELECT condition FROM device_now AS now
            WHERE now.client = OLD.client AND now.device = OLD.device);
END;

CREATE TRIGGER assignment_begins AFTER INSERT ON assignment WHEN NEW.archived = 0 BEGIN
    INSERT INTO assignment_tally VALUES (NEW.deployment, NEW.state, NEW.verdict, NEW.waits, 1)
        ON CONFLICT DO UPDATE SET count = count + 1;
    -- Who waits was counted without one.
    INSERT INTO assignment_tally SELECT NEW.deployment, 'PENDING', 1, 1, -1 FROM rollout_member
        WHERE deployment = NEW.deployment AND client = NEW.client AND device = NEW.device AND waits = 1
        ON CONFLICT DO UPDATE SET count = count - 1;
    UPDATE assignment SET waits = 1 WHERE id = NEW.id AND EXISTS (SELECT 1 FROM rollout_member
        WHERE deployment = NEW.deployment AND client = NEW.client AND device = NEW.device AND waits = 1);
    DELETE FROM assignment_tally WHERE deployment = NEW.deployment AND count = 0;
    UPDATE device_standing SET condition = (SELECT condition FROM device_now AS now
            WHERE now.client = NEW.client AND now.device = NEW.device)
        WHERE client = NEW.client AND device = NEW.device AND condition <> (SELECT condition FROM device_now AS now
            WHERE now.client = NEW.client AND now.device = NEW.device);
END;
CREATE TRIGGER assignment_changes AFTER UPDATE OF archived, state, verdict, waits ON assignment
WHEN OLD.archived <> NEW.archived OR OLD.state <> NEW.state OR OLD.verdict <> NEW.verdict OR OLD.waits <> NEW.waits BEGIN
    UPDATE assignment_tally SET count = count - 1
        WHERE OLD.archived = 0 AND deployment = OLD.deployment AND state = OLD.state AND verdict = OLD.verdict
        AND waits = OLD.waits;
    INSERT INTO assignment_tally SELECT NEW.deployment, NEW.state, NEW.verdict, NEW.waits, 1 WHERE NEW.archived = 0
        ON CONFLICT DO UPDATE SET count = count + 1;
    -- Who waits is counted without one while that is in the archive.
    INSERT INTO assignment_tally SELECT NEW.deployment, 'PENDING', 1, 1, NEW.archived - OLD.archived
        WHERE NEW.waits = 1 AND NEW.archived <> OLD.archived
        ON CONFLICT DO UPDATE SET count = count + excluded.count;
    DELETE FROM assignment_tally WHERE deployment = OLD.deployment AND count = 0;
END;
CREATE TRIGGER assignment_ends AFTER DELETE ON assignment WHEN OLD.archived = 0 BEGIN
    UPDATE assignment_tally SET count = count - 1
        WHERE deployment = OLD.deployment AND state = OLD.state AND verdict = OLD.verdict AND waits = OLD.waits;
    INSERT INTO assignment_tally SELECT OLD.deployment, 'PENDING', 1, 1, 1 WHERE OLD.waits = 1
        ON CONFLICT DO UPDATE SET count = count + 1;
    DELETE FROM assignment_tally WHERE deployment = OLD.deployment AND count = 0;
    UPDATE device_standing SET condition = (SELECT condition FROM device_now AS now
            WHERE now.client = OLD.client AND now.device = OLD.device)
        WHERE client = OLD.client AND device = OLD.device AND condition <> (SELECT condition FROM device_now AS now
            WHERE now.client = OLD.client AND now.device = OLD.device);
END;

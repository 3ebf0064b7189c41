-- Since when a device cannot look at its containers, as it says itself: what it said of them last may not hold any more, so it
-- does not count as converged. Why it cannot is among its capabilities.
ALTER TABLE device ADD COLUMN blind_since INTEGER;
-- These are few, and are looked for among all.
CREATE INDEX device_blind ON device (client, device) WHERE blind_since IS NOT NULL;

-- DeviceRecord::condition says the same.
DROP VIEW device_now;
CREATE VIEW device_now AS
    SELECT device.client, device.device,
        CASE WHEN standing = 'retired' THEN 'retired'
            WHEN worst = 2 THEN 'failed'
            WHEN worst = 1 OR silent_so_far OR blind THEN 'pending'
            ELSE 'converged' END AS condition
    FROM (SELECT device.client, device.device, client.standing, device.capabilities IS NULL AS silent_so_far,
              device.blind_since IS NOT NULL AS blind,
              (SELECT coalesce(max(verdict), 0) FROM assignment WHERE assignment.client = device.client
               AND assignment.device = device.device AND archived = 0) AS worst
          FROM device CROSS JOIN client ON client.id = device.client) AS device;

CREATE TRIGGER device_blinks AFTER UPDATE OF blind_since ON device
WHEN (OLD.blind_since IS NULL) <> (NEW.blind_since IS NULL) BEGIN
    UPDATE device_standing SET condition = (SELECT condition FROM device_now AS now
            WHERE now.client = NEW.client AND now.device = NEW.device)
        WHERE client = NEW.client AND device = NEW.device;
END;

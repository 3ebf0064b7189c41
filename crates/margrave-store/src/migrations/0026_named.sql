-- Devices by any part of what names them: their names, and the id and serial number that they told. Looking through all of them
-- for a text costs the more the more there are; by its trigrams it costs who is found. Kept by triggers, which nothing
-- but a device that comes, goes or tells another id sets off.
CREATE TABLE device_named (
    id     INTEGER PRIMARY KEY,
    client TEXT NOT NULL,
    device TEXT NOT NULL,
    -- `client:device`, and a line each for what `own` of its standing has.
    text   TEXT NOT NULL,
    UNIQUE (client, device)
) STRICT;
-- Folds more letters than comparing names does, so it leads to all that are meant and perhaps to others.
CREATE VIRTUAL TABLE device_trigram USING fts5 (text, content = 'device_named', content_rowid = 'id', tokenize = 'trigram');

INSERT INTO device_named (client, device, text)
    SELECT client, device, client || ':' || device || coalesce(char(10) || own, '') FROM device_standing;
INSERT INTO device_trigram (device_trigram) VALUES ('rebuild');

CREATE TRIGGER device_named_begins AFTER INSERT ON device_named BEGIN
    INSERT INTO device_trigram (rowid, text) VALUES (NEW.id, NEW.text);
END;
CREATE TRIGGER device_named_changes AFTER UPDATE OF text ON device_named WHEN OLD.text <> NEW.text BEGIN
    INSERT INTO device_trigram (device_trigram, rowid, text) VALUES ('delete', OLD.id, OLD.text);
    INSERT INTO device_trigram (rowid, text) VALUES (NEW.id, NEW.text);
END;
CREATE TRIGGER device_named_ends AFTER DELETE ON device_named BEGIN
    INSERT INTO device_trigram (device_trigram, rowid, text) VALUES ('delete', OLD.id, OLD.text);
END;

CREATE TRIGGER device_standing_named AFTER INSERT ON device_standing BEGIN
    INSERT INTO device_named (client, device, text) VALUES (NEW.client, NEW.device,
        NEW.client || ':' || NEW.device || coalesce(char(10) || NEW.own, ''));
END;
CREATE TRIGGER device_standing_renamed AFTER UPDATE OF own ON device_standing WHEN OLD.own IS NOT NEW.own BEGIN
    UPDATE device_named SET text = NEW.client || ':' || NEW.device || coalesce(char(10) || NEW.own, '')
        WHERE client = NEW.client AND device = NEW.device;
END;
CREATE TRIGGER device_standing_unnamed AFTER DELETE ON device_standing BEGIN
    DELETE FROM device_named WHERE client = OLD.client AND device = OLD.device;
END;

-- Who has one of a few capability sets, in the order of devices.
CREATE INDEX device_standing_capability ON device_standing (capability_set, client, device);
-- Who has no site, in the order of devices: in most fleets few.
CREATE INDEX device_standing_without_site ON device_standing (client, device) WHERE site IS NULL;

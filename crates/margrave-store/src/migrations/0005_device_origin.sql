-- The signed device whose place a device took. It is the same machine: what ran there keeps its assignment ids, and with
-- them its containers and volumes.
ALTER TABLE device ADD COLUMN origin TEXT;

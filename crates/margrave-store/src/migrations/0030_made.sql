-- What the document of an assignment was made from, as far as later decisions ask for it; nothing is known of those that were made before.
-- The revision of the deployment.
ALTER TABLE assignment ADD COLUMN made_revision INTEGER;
-- A digest of the answers, secrets by their fingerprints: others are a reason to make it anew.
ALTER TABLE assignment ADD COLUMN made_answers BLOB;
-- The values that cannot be changed any more, as JSON, secrets by their fingerprints; null where there are none.
ALTER TABLE assignment ADD COLUMN made_fixed TEXT;

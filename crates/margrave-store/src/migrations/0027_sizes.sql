-- What a device fetches for each component, in bytes, as its manifest said when it was pinned. Of packages that were added before,
-- nothing is known.
ALTER TABLE package ADD COLUMN sizes TEXT NOT NULL DEFAULT '{}';

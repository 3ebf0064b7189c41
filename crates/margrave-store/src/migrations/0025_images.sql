-- What the images of a package's components mean, for good. Of packages that were added before, nothing is known.
ALTER TABLE package ADD COLUMN images TEXT NOT NULL DEFAULT '{"named":{},"known":{}}';

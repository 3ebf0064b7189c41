-- Documents and bundles belong to whoever may fetch them. Every document names its device, so a table by digest shared nothing;
-- it only kept two indexes by digest, in which a publication for many devices writes all over the file. Rows keep the order in
-- which they came: what is published together lies together.

CREATE TABLE document (
    client     TEXT NOT NULL REFERENCES client (id),
    assignment BLOB NOT NULL,
    digest     BLOB NOT NULL CHECK (length(digest) = 32),
    size       INTEGER,
    -- The version that no longer has it; null while it is in the manifest.
    until      INTEGER,
    bytes      BLOB NOT NULL,
    PRIMARY KEY (client, assignment, digest)
) STRICT;
INSERT INTO document (client, assignment, digest, size, until, bytes)
    SELECT client, assignment, digest, size, until, bytes FROM document_reference JOIN blob USING (digest)
    ORDER BY blob.rowid;

CREATE TABLE bundle (
    client TEXT NOT NULL REFERENCES client (id),
    digest BLOB NOT NULL CHECK (length(digest) = 32),
    until  INTEGER,
    bytes  BLOB NOT NULL,
    PRIMARY KEY (client, digest)
) STRICT;
INSERT INTO bundle (client, digest, until, bytes)
    SELECT client, digest, until, bytes FROM bundle_reference JOIN blob USING (digest) ORDER BY blob.rowid;

CREATE TABLE git_document_now (
    client     TEXT NOT NULL REFERENCES git_repository (client) ON DELETE CASCADE,
    assignment BLOB NOT NULL,
    since      INTEGER NOT NULL,
    until      INTEGER,
    digest     BLOB NOT NULL CHECK (length(digest) = 32),
    bytes      BLOB NOT NULL,
    PRIMARY KEY (client, assignment, since)
) STRICT;
INSERT INTO git_document_now (client, assignment, since, until, digest, bytes)
    SELECT client, assignment, since, until, digest, bytes FROM git_document JOIN blob USING (digest)
    ORDER BY blob.rowid;

DROP TABLE git_document;
DROP TABLE document_reference;
DROP TABLE bundle_reference;
DROP TABLE blob;
ALTER TABLE git_document_now RENAME TO git_document;
CREATE INDEX git_document_since ON git_document (client, since);
CREATE INDEX git_document_until ON git_document (client, until);

-- Clients of the signed interface (g1) beside those of mutual TLS (g2).

-- In which form the client is given its documents and manifest, and has sent its capabilities.
ALTER TABLE client ADD COLUMN dialect TEXT NOT NULL DEFAULT 'g2' CHECK (dialect IN ('g2', 'g1'));

-- Everybody who asked to be onboarded, or whose certificate an operator brought. Only those who were accepted
-- are clients; the id is theirs from the first time on, so that asking again gives the same answer.
CREATE TABLE signed_client (
    id            TEXT NOT NULL PRIMARY KEY,
    -- The newest certificate that holds this key, exactly as it came (DER).
    certificate   BLOB NOT NULL,
    -- SHA-256 of the SubjectPublicKeyInfo: who has the key is the client, whatever the certificate around it says.
    fingerprint   BLOB NOT NULL UNIQUE CHECK (length(fingerprint) = 32),
    decision      TEXT NOT NULL CHECK (decision IN ('pending', 'accepted', 'rejected')),
    first_seen    INTEGER NOT NULL,
    last_seen     INTEGER NOT NULL,
    -- Where it last asked from; null when it never did.
    address       TEXT,
    -- The newest manifest version that it was given. Its reports do not say which one they speak of.
    version_given INTEGER NOT NULL DEFAULT 0,
    -- The device of a g2 client that took its place.
    moved_to      TEXT
) STRICT, WITHOUT ROWID;
CREATE INDEX signed_client_pending ON signed_client (last_seen) WHERE decision = 'pending';

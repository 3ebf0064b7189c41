-- Signatures of changing requests (g1) that could still be repeated: whoever copied one must not be able to use it
-- after a restart either. A row goes once its signature is too old to count.
CREATE TABLE used_signature (
    client TEXT NOT NULL,
    mark   BLOB NOT NULL CHECK (length(mark) = 16),
    until  INTEGER NOT NULL,
    PRIMARY KEY (client, mark)
) STRICT, WITHOUT ROWID;
CREATE INDEX used_signature_until ON used_signature (until);

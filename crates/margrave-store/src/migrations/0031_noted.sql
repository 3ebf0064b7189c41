-- Whether the labels that a device brought along from its token stand in a file, or are not to: what was used before nobody knows that of,
-- and a file that somebody removed must not come again.
ALTER TABLE join_token ADD COLUMN noted INTEGER NOT NULL DEFAULT 0;
UPDATE join_token SET noted = 1 WHERE used_at IS NOT NULL;
CREATE INDEX join_token_unnoted ON join_token (used_at) WHERE noted = 0 AND used_at IS NOT NULL;

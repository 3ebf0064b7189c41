-- Whether somebody asked for the number of tries, so that it also binds where there is nothing to go back to. Of what was chosen
-- before this was known it does not: no document changes by itself.
ALTER TABLE deployment ADD COLUMN attempts_bind INTEGER NOT NULL DEFAULT 0 CHECK (attempts_bind IN (0, 1));
ALTER TABLE deployment_revision ADD COLUMN attempts_bind INTEGER NOT NULL DEFAULT 0 CHECK (attempts_bind IN (0, 1));

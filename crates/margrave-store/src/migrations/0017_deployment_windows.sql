-- When changes of a deployment may begin, as JSON; at any time where nothing is said.
ALTER TABLE deployment ADD COLUMN windows TEXT;
ALTER TABLE deployment_revision ADD COLUMN windows TEXT;

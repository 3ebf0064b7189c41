-- What devices do about an update of a deployment that fails. The grace is in seconds; without one, each device's own.
ALTER TABLE deployment ADD COLUMN rollback_when TEXT NOT NULL DEFAULT 'on-failed-update';
ALTER TABLE deployment ADD COLUMN rollback_attempts INTEGER NOT NULL DEFAULT 2;
ALTER TABLE deployment ADD COLUMN health_grace INTEGER;
ALTER TABLE deployment_revision ADD COLUMN rollback_when TEXT NOT NULL DEFAULT 'on-failed-update';
ALTER TABLE deployment_revision ADD COLUMN rollback_attempts INTEGER NOT NULL DEFAULT 2;
ALTER TABLE deployment_revision ADD COLUMN health_grace INTEGER;

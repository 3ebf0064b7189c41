-- When there is room on a device again, whoever did not fit there is looked for.
CREATE INDEX misfit_device ON misfit (client, device);

-- Ports and volumes of a device that a package's components take. Of packages that were added before, none are known.
ALTER TABLE package ADD COLUMN claims TEXT NOT NULL DEFAULT '{}';

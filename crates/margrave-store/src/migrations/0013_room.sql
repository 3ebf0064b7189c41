-- When there is room on a device again, whoever did not fit there is looked for.
CREATE INDEX misfit_device ON misfit (client, device);

-- How the rollout of a revision ended that never came to its end; nothing for those that did, and for those of before.
ALTER TABLE deployment_revision ADD COLUMN unfinished TEXT;

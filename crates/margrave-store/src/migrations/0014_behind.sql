-- What is not as wanted, by what it is: a few of each are found without looking at the others, however many there are.
CREATE INDEX assignment_behind ON assignment (deployment, state, verdict, client, device)
    WHERE archived = 0 AND verdict <> 0;

-- What devices refuse by themselves is counted apart from what failed; the index is as large as that, and says which it is.
CREATE INDEX assignment_refused ON assignment (deployment, state, verdict, waits)
    WHERE archived = 0 AND verdict = 2 AND json_extract(report, '$.fault.code') IN ('document-invalid', 'not-eligible');

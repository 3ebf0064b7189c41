-- What failed and is not tried again by itself waits for a person, and is counted apart from what is; the index is as large as that.
CREATE INDEX assignment_given_up ON assignment (deployment)
    WHERE archived = 0 AND verdict = 2 AND state = 'FAILED' AND json_type(report, '$.detail') = 'object'
        AND json_extract(report, '$.detail.next_try') IS NULL
        AND coalesce(json_extract(report, '$.fault.code'), '') NOT IN ('document-invalid', 'not-eligible');

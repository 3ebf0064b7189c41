//! What the document of an assignment was made from, as far as later decisions have to know it.

use std::collections::HashMap;
use std::sync::Arc;

use margrave_core::digest::Digest;
use margrave_core::parameters::Held;
use rusqlite::Row;

use crate::column;

/// Remembered with the assignment: what the deployment says by now may never have reached the device.
#[derive(Debug, Clone, PartialEq)]
pub struct Basis {
    /// The deployment's revision.
    pub revision: u64,
    /// Tells the answers from others, and secrets by their fingerprints.
    pub answers: Digest,
    /// The values that cannot be changed any more on the device.
    pub fixed: Arc<Held>,
}

/// Beyond this, nothing is in common.
const SHARED_MAX: usize = 32;

/// Reads those of many assignments: most have the same values fixed, or none.
#[derive(Default)]
pub(crate) struct BasisReader {
    none: Arc<Held>,
    known: HashMap<String, Arc<Held>>,
}

impl BasisReader {
    /// From three columns, the first of them at `at`; nothing for what was made before it was remembered.
    pub(crate) fn read(&mut self, row: &Row<'_>, at: usize) -> rusqlite::Result<Option<Basis>> {
        if row.get_ref(at)?.as_i64_or_null()?.is_none() {
            return Ok(None);
        }
        let fixed = match row.get_ref(at + 2)?.as_str_or_null()? {
            None => Arc::clone(&self.none),
            Some(text) => match self.known.get(text) {
                Some(fixed) => Arc::clone(fixed),
                None => {
                    let fixed: Arc<Held> = Arc::new(column::json_at(at + 2, text)?);
                    if self.known.len() == SHARED_MAX {
                        self.known.clear();
                    }
                    self.known.insert(text.to_owned(), Arc::clone(&fixed));
                    fixed
                }
            },
        };
        let answers = Digest::from_bytes(row.get(at + 1)?);
        Ok(Some(Basis { revision: column::unsigned_at(row, at)?, answers, fixed }))
    }
}

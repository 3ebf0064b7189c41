//! Used signatures of signed requests, for as long as they could be repeated.

use margrave_core::id::ClientId;
use margrave_core::moment::Moment;

use crate::column::{self, Columns as _};
use crate::{Error, Store};

/// A signature that its client has used up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsedSignature {
    pub client: ClientId,
    /// What tells it from every other one.
    pub mark: [u8; 16],
    /// From then on nobody needs to remember it.
    pub until: Moment,
}

impl Store {
    /// Those that could still be repeated, the oldest first.
    pub async fn used_signatures(&self, now: Moment) -> Result<Vec<UsedSignature>, Error> {
        self.read(move |sql| {
            let mut statement = sql.statement(
                "SELECT client, mark, until FROM used_signature WHERE until >= ?1 ORDER BY until",
            )?;
            let rows = statement.query_map([column::moment(now)], |row| {
                Ok(UsedSignature {
                    client: row.parsed("client")?,
                    mark: row.get("mark")?,
                    until: row.moment("until")?,
                })
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
        .await
    }

    /// Keeps signatures, and forgets those that are over: there are never more than can be repeated.
    pub async fn keep_signatures(&self, used: Vec<UsedSignature>, now: Moment) -> Result<(), Error> {
        if used.is_empty() {
            return Ok(());
        }
        self.write(move |tx| {
            tx.sql
                .statement("DELETE FROM used_signature WHERE until < ?1")?
                .execute([column::moment(now)])?;
            let mut statement = tx.sql.statement(
                "INSERT INTO used_signature (client, mark, until) VALUES (?1, ?2, ?3)
                 ON CONFLICT (client, mark) DO UPDATE SET until = max(until, excluded.until)",
            )?;
            for UsedSignature { client, mark, until } in &used {
                statement.execute((client.as_str(), mark, column::moment(*until)))?;
            }
            Ok(())
        })
        .await
    }
}

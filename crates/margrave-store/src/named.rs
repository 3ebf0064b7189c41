//! Devices that a text may name, found by the text's trigrams (`device_trigram`), so that looking for it costs who is found.

use crate::sql::Sql;

/// More than that are not gathered: where so many are meant, a page of them is found soon by looking through the fleet in its
/// order.
const GATHERED_MAX: u32 = 1000;
/// Shorter texts have no trigram.
const CHARACTERS_MIN: usize = 3;
/// What comes behind them is compared and leads nowhere: more trigrams find hardly fewer, and each is looked up.
const CHARACTERS_MAX: usize = 64;

/// Devices as they are written in the database, client first.
pub(crate) type Named = Vec<(String, String)>;

/// All devices of which some name, id or serial number has the text in any case, and perhaps others. `None` where it does not lead
/// to few.
pub(crate) fn with_text(sql: &Sql<'_>, text: &str) -> rusqlite::Result<Option<Named>> {
    // A text ends for the search where it has a zero, and for comparing it does not.
    if text.chars().take(CHARACTERS_MIN).count() < CHARACTERS_MIN || text.contains('\0') {
        return Ok(None);
    }
    let begins: String = text.chars().take(CHARACTERS_MAX).collect();
    let mut statement = sql.statement(
        "SELECT named.client, named.device FROM device_trigram CROSS JOIN device_named AS named
             ON named.id = device_trigram.rowid
         WHERE device_trigram MATCH ?1 LIMIT ?2",
    )?;
    let quoted = format!("\"{}\"", begins.replace('"', "\"\""));
    let named: Named = statement
        .query_map((quoted, GATHERED_MAX + 1), |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<Result<_, _>>()?;
    Ok(Some(named).filter(|named| named.len() <= GATHERED_MAX as usize))
}

/// All devices of which some value among the capabilities has the text, which is in lower case, and perhaps others. `None` where it
/// does not lead to few.
pub(crate) fn with_capability(sql: &Sql<'_>, text: &str) -> rusqlite::Result<Option<Named>> {
    let told: u32 = sql
        .statement("SELECT coalesce(sum(devices), 0) FROM capability_set WHERE instr(words, ?1) > 0")?
        .query_row([text], |row| row.get(0))?;
    if told > GATHERED_MAX {
        return Ok(None);
    }
    let Some(mut named) = with_text(sql, text)? else {
        return Ok(None);
    };
    let mut statement = sql.statement(
        "SELECT standing.client, standing.device FROM capability_set AS told
         CROSS JOIN device_standing AS standing INDEXED BY device_standing_capability ON standing.capability_set = told.id
         WHERE instr(told.words, ?1) > 0",
    )?;
    for device in statement.query_map([text], |row| Ok((row.get(0)?, row.get(1)?)))? {
        named.push(device?);
    }
    Ok(Some(named))
}

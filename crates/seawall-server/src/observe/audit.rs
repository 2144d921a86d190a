//! Who did what to the running gateway. Every action of an operator leaves a line in the store and in the log.

use crate::ServerState;
use seawall_engine::record::{NoteRecord, Record};
use seawall_store::notes::AuditEntry;

/// Notes something that an operator did. A list that cannot be written keeps nobody from working.
pub(crate) async fn audit(shared: &ServerState, who: &str, action: &'static str, detail: String) {
    let fields = vec![("who", who.to_owned()), ("action", action.to_owned()), ("detail", detail.clone())];
    shared.recorder.push(Record::Note(NoteRecord { at: shared.clock.now().wall, event: "operator", fields }));
    let deed = AuditEntry { at: shared.desk.now(), who: who.to_owned(), action: action.to_owned(), detail };
    drop(shared.desk.store.record_deed(deed).await);
}

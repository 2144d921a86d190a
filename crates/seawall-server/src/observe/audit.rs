//! The audit log. Every action of an operator is written to the store and to the log.

use crate::ServerState;
use seawall_engine::record::{NoteRecord, Record};
use seawall_store::notes::AuditEntry;

/// Records an operator's action. A failed write to the store does not prevent the action.
pub(crate) async fn audit(shared: &ServerState, who: &str, action: &'static str, detail: String) {
    let fields = vec![("who", who.to_owned()), ("action", action.to_owned()), ("detail", detail.clone())];
    shared.recorder.push(Record::Note(NoteRecord { at: shared.clock.now().wall, event: "operator", fields }));
    let deed = AuditEntry { at: shared.desk.now(), who: who.to_owned(), action: action.to_owned(), detail };
    drop(shared.desk.store.record_deed(deed).await);
}

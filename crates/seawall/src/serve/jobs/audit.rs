//! Who did what, for the list that operators read afterwards.

use crate::serve::Shared;
use seawall_store::notes::Deed;

/// Notes something that an operator did. A list that cannot be written keeps nobody from working.
pub(super) async fn audit(shared: &Shared, action: &str, detail: String) {
    let deed = Deed { at: shared.desk.now(), who: "operator".to_owned(), action: action.to_owned(), detail };
    drop(shared.desk.store.record_deed(deed).await);
}

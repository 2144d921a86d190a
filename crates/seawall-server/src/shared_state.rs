//! The connection to shared state in Redis; its loss raises an event.

use crate::ServerState;
use crate::observe::{OperatorEvent, Severity};
use anyhow::Context as _;
use seawall_engine::shared::{News, RedisStore};

/// Maintains the connection to shared state, on a thread and a runtime of its own.
pub(crate) fn supervise(store: &RedisStore, shared: &ServerState) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start a runtime")?;
    let terminal = &shared.host;
    let (bus, now) = (&shared.eyes.bus, || shared.clock.now().wall);
    runtime.block_on(store.supervise(&shared.clock, |news| match news {
        News::Lost(why) => {
            let share = store.instances();
            let meanwhile = format!("limits run on a share of one in {share}, breakers and keys on what is known here");
            terminal.note(&format!("warning: shared state does not answer ({why}); {meanwhile}"));
            let event = OperatorEvent::new("shared-state-lost", Severity::Warning, "shared state does not answer");
            bus.raise(&event.detail(format!("{why}; {meanwhile}")), now());
        }
        News::Back => {
            terminal.note("shared state is back");
            bus.clear(back(), now());
        }
    }));
    Ok(())
}

/// Ends the alarm about the loss, raised by this process or an earlier one.
pub(crate) fn back() -> OperatorEvent {
    OperatorEvent::new("shared-state-lost", Severity::Info, "shared state is back")
}

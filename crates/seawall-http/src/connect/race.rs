//! Connects to one of several addresses of a name (RFC 8305). A silent address costs a quarter of a second instead of the whole timeout,
//! and the address that connected is tried first the next time.

use crate::fault::Shortage;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use tokio::task::JoinSet;

/// The head start of an address before the next one is tried (RFC 8305 §5).
const HEAD_START: Duration = Duration::from_millis(250);
/// Names whose last address is remembered. When full, the map is cleared, which costs each name one head start.
const MAX_NAMES: usize = 4096;

/// The addresses that connected last, by name.
#[derive(Debug, Default)]
pub(super) struct Winners(Mutex<BTreeMap<String, IpAddr>>);

impl Winners {
    /// The order in which addresses are tried: the last winner, then both families in turn, beginning with the
    /// resolver's first choice.
    pub(super) fn order(&self, name: &str, addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
        if addresses.len() < 2 {
            return addresses;
        }
        let preferred = addresses[0].is_ipv4();
        let (first, second): (Vec<SocketAddr>, Vec<SocketAddr>) = addresses.iter().partition(|address| address.is_ipv4() == preferred);
        let mut order: Vec<SocketAddr> = Vec::with_capacity(addresses.len());
        for place in 0..first.len().max(second.len()) {
            order.extend(first.get(place));
            order.extend(second.get(place));
        }
        let last = self.0.lock().get(name).copied();
        if let Some(at) = last.and_then(|last| order.iter().position(|address| address.ip() == last)) {
            order[..=at].rotate_right(1);
        }
        order
    }

    pub(super) fn remember(&self, name: &str, address: SocketAddr) {
        let mut winners = self.0.lock();
        if let Some(known) = winners.get_mut(name) {
            *known = address.ip();
            return;
        }
        if winners.len() >= MAX_NAMES {
            winners.clear();
        }
        winners.insert(name.to_owned(), address.ip());
    }
}

/// Returns the first connection that opens. The next address is tried as soon as one fails, and otherwise after a head start. Of several
/// failures the most informative is reported.
pub(super) async fn race<S, F>(order: &[SocketAddr], limit: Duration, connect: impl Fn(SocketAddr) -> F) -> io::Result<(S, SocketAddr)>
where
    S: Send + 'static,
    F: Future<Output = io::Result<S>> + Send + 'static,
{
    if let [only] = order {
        return Ok((connect(*only).await?, *only));
    }
    // A short timeout must leave time for every address too.
    let head_start = HEAD_START.min(limit / u32::try_from(order.len() + 1).unwrap_or(u32::MAX));
    let (mut waiting, mut running, mut last) = (order.iter().copied(), JoinSet::new(), None::<io::Error>);
    loop {
        match waiting.next() {
            Some(address) => {
                let opening = connect(address);
                running.spawn(async move { (address, opening.await) });
            }
            None if running.is_empty() => return Err(last.unwrap_or_else(|| io::ErrorKind::NotFound.into())),
            None => {}
        }
        let ended = if waiting.len() == 0 {
            running.join_next().await
        } else {
            tokio::time::timeout(head_start, running.join_next()).await.unwrap_or(None)
        };
        match ended {
            // Dropping the set aborts the connections still in progress.
            Some(Ok((address, Ok(stream)))) => return Ok((stream, address)),
            Some(Ok((_, Err(error)))) => last = Some(more_telling(last, error)),
            Some(Err(_)) | None => {}
        }
    }
}

/// The failure to report. A lack of file descriptors or memory comes first, because the addresses were never tried; a missing local address
/// of one family says less than an address that refused.
fn more_telling(before: Option<io::Error>, now: io::Error) -> io::Error {
    let weight = |error: &io::Error| match Shortage::of(error) {
        Some(Shortage::Files | Shortage::Memory) => 2,
        None => 1,
        Some(Shortage::Ports) => 0,
    };
    match before {
        Some(before) if weight(&before) > weight(&now) => before,
        Some(_) | None => now,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::Fault;
    use std::io::ErrorKind;
    use tokio::time::Instant;

    const SIX: &str = "[2001:db8::1]:1";
    const SIX_TOO: &str = "[2001:db8::2]:1";
    const FOUR: &str = "192.0.2.1:1";
    const FOUR_TOO: &str = "192.0.2.2:1";

    fn addresses(texts: &[&str]) -> Vec<SocketAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    /// Connects or refuses after some milliseconds, or is silent.
    #[derive(Clone, Copy)]
    enum Does {
        Answers(u64),
        Refuses(u64),
        Nothing,
    }

    /// The address that connected, and the time in milliseconds.
    async fn raced(limit_ms: u64, script: &[(&str, Does)]) -> Result<(String, u128), Fault> {
        let order = addresses(&script.iter().map(|(address, _)| *address).collect::<Vec<_>>());
        let began = Instant::now();
        let connect = |address: SocketAddr| {
            let does = script.iter().find(|(text, _)| text.parse::<SocketAddr>().unwrap() == address).unwrap().1;
            async move {
                match does {
                    Does::Answers(ms) => tokio::time::sleep(Duration::from_millis(ms)).await,
                    Does::Refuses(ms) => {
                        tokio::time::sleep(Duration::from_millis(ms)).await;
                        return Err(io::Error::from(ErrorKind::ConnectionRefused));
                    }
                    Does::Nothing => std::future::pending().await,
                }
                Ok(())
            }
        };
        let raced = race(&order, Duration::from_millis(limit_ms), connect).await;
        let ((), address) = raced.map_err(|error| Fault::of_connect(&error))?;
        Ok((address.to_string(), began.elapsed().as_millis()))
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_address_does_not_keep_the_next_one_waiting() {
        use Does::{Answers, Nothing, Refuses};
        for (limit, script, who, after) in [
            (5000, vec![(SIX, Nothing), (FOUR, Answers(10))], FOUR, 260),
            (5000, vec![(SIX, Refuses(5)), (FOUR, Answers(10))], FOUR, 15),
            (5000, vec![(SIX, Answers(300)), (FOUR, Answers(200))], SIX, 300),
            (5000, vec![(SIX, Nothing), (FOUR, Nothing), (SIX_TOO, Refuses(1)), (FOUR_TOO, Answers(1))], FOUR_TOO, 502),
            (300, vec![(SIX, Nothing), (FOUR, Answers(10))], FOUR, 110),
        ] {
            assert_eq!(raced(limit, &script).await, Ok((who.to_owned(), after)));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn all_have_to_fail_before_the_connection_does() {
        let script = [(SIX, Does::Refuses(400)), (FOUR, Does::Refuses(1))];
        assert_eq!(raced(5000, &script).await, Err(Fault::REFUSED));
    }

    #[test]
    fn what_was_not_tried_for_want_of_files_is_not_the_upstreams_refusal() {
        let (refused, files) = (|| io::Error::from(ErrorKind::ConnectionRefused), || io::Error::from_raw_os_error(24));
        let no_address = || std::net::TcpListener::bind("192.0.2.1:0").unwrap_err();
        let reported = |first: io::Error, second: io::Error| Fault::of_connect(&more_telling(Some(first), second));
        assert_eq!([reported(files(), refused()), reported(refused(), files())], [Fault::UNRELATED; 2]);
        assert_eq!([reported(no_address(), refused()), reported(refused(), no_address())], [Fault::REFUSED; 2]);
        assert_eq!(reported(no_address(), no_address()), Fault::UNRELATED);
    }

    #[test]
    fn families_take_turns_and_the_last_winner_comes_first() {
        let winners = Winners::default();
        let found = addresses(&[SIX, SIX_TOO, FOUR, FOUR_TOO]);
        assert_eq!(winners.order("a", found.clone()), addresses(&[SIX, FOUR, SIX_TOO, FOUR_TOO]));
        winners.remember("a", FOUR_TOO.parse().unwrap());
        assert_eq!(winners.order("a", found.clone()), addresses(&[FOUR_TOO, SIX, FOUR, SIX_TOO]));
        assert_eq!(winners.order("b", found), addresses(&[SIX, FOUR, SIX_TOO, FOUR_TOO]));
        assert_eq!(winners.order("a", addresses(&[SIX, FOUR])), addresses(&[SIX, FOUR]), "an address that is gone is forgotten");
    }

    #[test]
    fn remembered_names_are_bounded() {
        let winners = Winners::default();
        for number in 0..=MAX_NAMES {
            winners.remember(&number.to_string(), FOUR.parse().unwrap());
        }
        assert_eq!(winners.0.lock().len(), 1);
    }
}

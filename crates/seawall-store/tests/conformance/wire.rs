//! A proxy between a store and PostgreSQL that simulates network failures: lost replies, an unreachable server, silence.

use crate::cluster::Cluster;
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};

/// Its thread runs until the process ends.
pub(crate) struct Wire {
    port: u16,
    troubles: Arc<Troubles>,
}

/// Byte strings that messages contain.
pub(crate) type Marks = &'static [&'static [u8]];

#[derive(Default)]
struct Troubles {
    /// Drops one connection with the reply to the last of these messages, after the others were sent before; optionally all other
    /// connections end as well.
    cut: Mutex<Option<(Marks, bool)>>,
    cuts: AtomicUsize,
    /// New connections fail, and existing ones are closed.
    away: AtomicBool,
    /// All data is dropped, while connections stay open.
    mute: AtomicBool,
}

impl Wire {
    pub(crate) fn to(cluster: &'static Cluster) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let troubles = Arc::new(Troubles::default());
        let wire = Self { port, troubles: Arc::clone(&troubles) };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        std::thread::spawn(move || runtime.block_on(serve(listener, cluster, troubles)));
        wire
    }

    /// Returns the address of a server's database through this proxy.
    pub(crate) fn url(&self, direct: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{}", self.port, direct.rsplit('/').next().unwrap())
    }

    /// Drops the reply to the next message with the last mark, once the other marks were sent before.
    pub(crate) fn cut(&self, marks: Marks) {
        *self.troubles.cut.lock().unwrap() = Some((marks, false));
    }

    /// Like `cut`; afterwards the server is away.
    pub(crate) fn cut_for_good(&self, marks: Marks) {
        *self.troubles.cut.lock().unwrap() = Some((marks, true));
    }

    /// Returns the number of dropped replies.
    pub(crate) fn cuts(&self) -> usize {
        self.troubles.cuts.load(Ordering::SeqCst)
    }

    /// Drops all data in both directions, also on new connections.
    pub(crate) fn mute(&self) {
        self.troubles.mute.store(true, Ordering::SeqCst);
    }

    /// Ends all failures for new connections.
    pub(crate) fn mend(&self) {
        self.troubles.away.store(false, Ordering::SeqCst);
        self.troubles.mute.store(false, Ordering::SeqCst);
    }
}

async fn serve(listener: TcpListener, cluster: &'static Cluster, troubles: Arc<Troubles>) {
    listener.set_nonblocking(true).unwrap();
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    while let Ok((client, _)) = listener.accept().await {
        if troubles.away.load(Ordering::SeqCst) {
            continue;
        }
        let server = UnixStream::connect(cluster.socket()).await.unwrap();
        tokio::spawn(relay(client, server, Arc::clone(&troubles)));
    }
}

async fn relay(mut client: TcpStream, mut server: UnixStream, troubles: Arc<Troubles>) {
    let (mut asked, mut answered) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    let (mut said, mut doomed, mut dead) = (0, None, false);
    loop {
        tokio::select! {
            read = client.read(&mut asked) => {
                let Ok(length @ 1..) = read else { return };
                dead |= troubles.mute.load(Ordering::SeqCst);
                if dead {
                    continue;
                }
                let has = |mark: &[u8]| asked[..length].windows(mark.len()).any(|bytes| bytes == mark);
                if let Some((marks, _)) = *troubles.cut.lock().unwrap() {
                    said += usize::from(marks.get(said).is_some_and(|mark| has(mark)));
                }
                doomed = doomed.or_else(|| troubles.cut.lock().unwrap().take_if(|(marks, _)| said == marks.len()));
                server.write_all(&asked[..length]).await.unwrap();
            }
            read = server.read(&mut answered) => {
                let Ok(length @ 1..) = read else { return };
                if let Some((_, for_good)) = doomed {
                    troubles.away.fetch_or(for_good, Ordering::SeqCst);
                    troubles.cuts.fetch_add(1, Ordering::SeqCst);
                    return;
                }
                dead |= troubles.mute.load(Ordering::SeqCst);
                if !dead && client.write_all(&answered[..length]).await.is_err() {
                    return;
                }
            }
            () = tokio::time::sleep(Duration::from_millis(20)) => {
                dead |= troubles.mute.load(Ordering::SeqCst);
                if troubles.away.load(Ordering::SeqCst) {
                    return;
                }
            }
        }
    }
}

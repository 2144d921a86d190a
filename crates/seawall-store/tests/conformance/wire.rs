//! Stands between a store and its PostgreSQL, and does to it what networks do: answers get lost, nobody is there, or nothing is heard.

use crate::cluster::Cluster;
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};

/// Its thread lives as long as the process.
pub(crate) struct Wire {
    port: u16,
    troubles: Arc<Troubles>,
}

/// What messages have in them.
pub(crate) type Marks = &'static [&'static [u8]];

#[derive(Default)]
struct Troubles {
    /// A connection on which these were said one after the other is lost with the answer to the last, once; and whether all else ends
    /// with it.
    cut: Mutex<Option<(Marks, bool)>>,
    cuts: AtomicUsize,
    /// Nobody gets through, and nobody is left.
    away: AtomicBool,
    /// Whatever is said from now on is heard by nobody, and no connection ends.
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

    /// The address of a database of the server's, by way of this.
    pub(crate) fn url(&self, direct: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{}", self.port, direct.rsplit('/').next().unwrap())
    }

    /// Loses the answer to the next message that has the last of these in it, where the others were said before.
    pub(crate) fn cut(&self, marks: Marks) {
        *self.troubles.cut.lock().unwrap() = Some((marks, false));
    }

    /// As `cut`; from then on the server is away.
    pub(crate) fn cut_for_good(&self, marks: Marks) {
        *self.troubles.cut.lock().unwrap() = Some((marks, true));
    }

    /// How many answers were lost.
    pub(crate) fn cuts(&self) -> usize {
        self.troubles.cuts.load(Ordering::SeqCst)
    }

    /// Swallows everything, in both directions, and new connections too.
    pub(crate) fn mute(&self) {
        self.troubles.mute.store(true, Ordering::SeqCst);
    }

    /// Everything is as it should be, for new connections.
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

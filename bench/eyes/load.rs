//! Calls at a steady rate that does not wait for answers (an open loop), and how long each took, in nanoseconds, one a line.
//! Usage: load ADDRESS PATH CONNECTIONS CALLS_PER_SECOND SECONDS. Plain std: `rustc -O` is all that it needs.

use std::io::{BufWriter, Error, ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use std::{env, io, thread};

/// One connection's share of the calls. A call that is due while the one before it is still under way waits for it, and
/// that counts as its time; that this thread woke up late does not.
fn call(address: &str, path: &str, first: Instant, every: Duration, until: Instant) -> io::Result<Vec<u64>> {
    let mut peer = TcpStream::connect(address)?;
    peer.set_nodelay(true)?;
    peer.set_read_timeout(Some(Duration::from_secs(10)))?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: bench\r\n\r\n");
    let (mut took, mut answer, mut due, mut free) = (Vec::new(), vec![0; 16 * 1024], first, first);
    while due < until {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let began = if free > due { due } else { Instant::now() };
        peer.write_all(request.as_bytes())?;
        read(&mut peer, &mut answer)?;
        free = Instant::now();
        took.push(u64::try_from((free - began).as_nanos()).unwrap_or(u64::MAX));
        due += every;
    }
    Ok(took)
}

/// One answer, whose head says how long it is.
fn read(peer: &mut TcpStream, into: &mut [u8]) -> io::Result<()> {
    let bad = |what: &str| Error::new(ErrorKind::InvalidData, what.to_owned());
    let mut have = 0;
    loop {
        match peer.read(&mut into[have..])? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            more => have += more,
        }
        let Some(end) = into[..have].windows(4).position(|bytes| bytes == b"\r\n\r\n") else { continue };
        let head = std::str::from_utf8(&into[..end]).map_err(|_| bad("no text"))?;
        if !head.starts_with("HTTP/1.1 200 ") {
            return Err(bad(head));
        }
        let length = head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length:").map(|text| text.trim().parse()));
        match length {
            Some(Ok::<usize, _>(length)) if have >= end + 4 + length => return Ok(()),
            Some(Ok(_)) => {}
            _ => return Err(bad("no length")),
        }
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [address, path, connections, rate, seconds] = &arguments[..] else {
        eprintln!("load ADDRESS PATH CONNECTIONS CALLS_PER_SECOND SECONDS");
        return ExitCode::from(2);
    };
    let number = |text: &String| text.parse::<u32>().ok().filter(|number| *number > 0).expect("a number above zero");
    let (connections, rate, seconds) = (number(connections), number(rate), number(seconds));
    let every = Duration::from_secs(1) * connections / rate;
    // Everybody is connected before the first one calls.
    let start = Instant::now() + Duration::from_millis(100);
    let until = start + Duration::from_secs(seconds.into());
    let calls = (0..connections).map(|n| {
        let (address, path) = (address.clone(), path.clone());
        thread::spawn(move || call(&address, &path, start + every * n / connections, every, until))
    });
    let mut out = BufWriter::new(io::stdout().lock());
    for thread in calls.collect::<Vec<_>>() {
        match thread.join().expect("no thread panics") {
            Ok(took) => took.iter().for_each(|nanos| writeln!(out, "{nanos}").expect("somebody reads")),
            Err(error) => {
                eprintln!("a call failed: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

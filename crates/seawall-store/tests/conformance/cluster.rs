//! A private PostgreSQL server with its own folder and a socket instead of a port. It ends with this process, however that ends.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

/// Keeps the server while its standard input is open; the kernel closes it with this process. PostgreSQL refuses to run as root, so the
/// keeper gives up root first.
const KEEPER: &str = r#"
trap '' INT TERM HUP
umask 022
folder=$(mktemp -d) || exit 1
as=
if [ "$(id -u)" = 0 ]; then
  user=nobody; id postgres >/dev/null 2>&1 && user=postgres
  chown "$user" "$folder"
  as="setpriv --reuid=$user --regid=$(id -g "$user") --clear-groups"
fi
cd "$folder"
all() { pid=$(head -1 "$folder/data/postmaster.pid") && echo "$pid" $(cat "/proc/$pid/task/$pid/children"); }
stop() { { kill -CONT $(all); } 2>/dev/null; $as "$BIN/pg_ctl" -D "$folder/data" -m immediate -w stop >/dev/null 2>&1; rm -rf "$folder"; }
$as "$BIN/initdb" -D "$folder/data" -U postgres -A trust -E UTF8 --locale=C --no-sync >"$folder/out" 2>&1 &&
$as "$BIN/pg_ctl" -D "$folder/data" -l "$folder/data/log" -w -o "-k $folder -c listen_addresses= -c max_connections=300 -c max_locks_per_transaction=128 $SETTINGS" start >>"$folder/out" 2>&1 ||
{ tail -5 "$folder/out" "$folder/data/log" >&2; stop; exit 1; }
echo "$folder"
while read -r order; do
  case $order in
    stop) $as "$BIN/pg_ctl" -D "$folder/data" -m fast -w stop >/dev/null 2>&1 && echo stopped ;;
    freeze) kill -STOP $(all) && echo frozen ;;
    thaw) kill -CONT $(all) && echo thawed ;;
    restart) $as "$BIN/pg_ctl" -D "$folder/data" -l "$folder/data/log" -m fast -w restart >/dev/null 2>&1 && echo restarted ;;
  esac
done
stop
"#;

pub(crate) struct Cluster {
    folder: String,
    /// Closed at the latest by the end of this process.
    orders: Mutex<ChildStdin>,
    answers: Mutex<BufReader<ChildStdout>>,
    _child: Child,
    databases: AtomicUsize,
}

/// Finds PostgreSQL's programs: Debian keeps them outside of the path.
fn programs() -> PathBuf {
    let debian = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten().map(|version| version.path().join("bin"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut found: Vec<PathBuf> = debian.chain(std::env::split_paths(&path)).filter(|folder| folder.join("initdb").exists()).collect();
    found.sort();
    found.pop().expect("PostgreSQL's programs are not on this machine: install the Debian package `postgresql`")
}

impl Cluster {
    /// Starts a server once per process. It does not sync to disk, which makes it faster.
    pub(crate) fn shared() -> &'static Self {
        static CLUSTER: OnceLock<Cluster> = OnceLock::new();
        CLUSTER.get_or_init(|| Self::start("-c fsync=off -c full_page_writes=off"))
    }

    pub(crate) fn start(settings: &str) -> Self {
        let mut child = Command::new("sh")
            .args(["-c", KEEPER])
            .env("BIN", programs())
            .env("SETTINGS", settings)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell can be started");
        let orders = Mutex::new(child.stdin.take().expect("its input is ours"));
        let mut answers = BufReader::new(child.stdout.take().expect("its output is ours"));
        let mut folder = String::new();
        answers.read_line(&mut folder).expect("it says where it is");
        let folder = folder.trim().to_owned();
        assert!(!folder.is_empty(), "PostgreSQL did not start; it said why above");
        Self { folder, orders, answers: Mutex::new(answers), _child: child, databases: AtomicUsize::new(0) }
    }

    /// Restarts the server, even during requests.
    pub(crate) async fn restart(&'static self) {
        self.order("restart", "restarted\n").await;
    }

    pub(crate) async fn stop(&'static self) {
        self.order("stop", "stopped\n").await;
    }

    /// Stops all server processes (SIGSTOP): connections stay open without replies.
    pub(crate) async fn freeze(&'static self) {
        self.order("freeze", "frozen\n").await;
    }

    pub(crate) async fn thaw(&'static self) {
        self.order("thaw", "thawed\n").await;
    }

    async fn order(&'static self, order: &'static str, done: &'static str) {
        let wait = move || {
            writeln!(self.orders.lock().unwrap(), "{order}").unwrap();
            let mut answer = String::new();
            self.answers.lock().unwrap().read_line(&mut answer).unwrap();
            assert_eq!(answer, done);
        };
        tokio::task::spawn_blocking(wait).await.unwrap();
    }

    pub(crate) fn url(&self, database: &str) -> String {
        format!("postgres://postgres@{}/{database}", self.folder.replace('/', "%2F"))
    }

    /// Returns the path of the socket.
    pub(crate) fn socket(&self) -> String {
        format!("{}/.s.PGSQL.5432", self.folder)
    }

    /// Returns the address of a new, empty database.
    pub(crate) async fn database(&self) -> String {
        let name = format!("case_{}", self.databases.fetch_add(1, Ordering::Relaxed));
        self.execute("postgres", &format!("CREATE DATABASE {name}")).await;
        self.url(&name)
    }

    /// Runs a statement that bypasses the store.
    pub(crate) async fn execute(&self, database: &str, statement: &str) {
        let (client, connection) = tokio_postgres::connect(&self.url(database), tokio_postgres::NoTls).await.unwrap();
        let served = tokio::spawn(connection);
        client.batch_execute(statement).await.unwrap();
        drop(client);
        served.await.unwrap().unwrap();
    }
}

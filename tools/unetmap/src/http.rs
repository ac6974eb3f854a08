// SPDX-License-Identifier: BSD-2-Clause
//! HTTP for `unetmap metrics`: each connection has a thread of its own, one request, and a deadline; their number is
//! bounded. So a client that neither sends nor reads keeps nobody else's answer from being made.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Most connections at a time. One more ends the newest that has sent no request yet, or the oldest if all have.
const MAX_CONNECTIONS: usize = 32;
/// Time for a request to arrive, and then for its answer to be read.
const LIMIT: Duration = Duration::from_secs(10);
/// Most bytes of a request, without a body.
const MAX_REQUEST: usize = 8192;
/// Pause when the process has no descriptors or threads left.
const PAUSE: Duration = Duration::from_millis(100);

pub(crate) const TEXT: &str = "text/plain; charset=utf-8";
/// The answer to a request that names another host.
const OTHER_HOST: &str = "the request's Host is neither the address that it came to nor a name of this server: use the \
                          address, or start unetmap metrics with --host NAME\n";

pub(crate) enum Listener {
    /// With the names by which clients may call it, besides loopback's and its own addresses. A page that a browser has
    /// from elsewhere can have its own name lead here (DNS rebinding), but sends that name.
    Tcp(TcpListener, Vec<String>),
    Unix(UnixListener),
}

impl Listener {
    /// Of a UNIX socket, too, this is a `TcpStream`: of both, only what all sockets have is used.
    fn accept(&self) -> io::Result<TcpStream> {
        match self {
            Listener::Tcp(listener, _) => Ok(listener.accept()?.0),
            Listener::Unix(listener) => Ok(OwnedFd::from(listener.accept()?.0).into()),
        }
    }

    /// Who may be called at a connection; `None`: anybody, as no browser connects to a UNIX socket.
    fn hosts(&self, connection: &TcpStream) -> Option<Hosts> {
        match self {
            Listener::Tcp(_, names) => {
                Some(Hosts { names: names.clone(), own: connection.local_addr().ok().map(|at| at.ip().to_canonical()) })
            }
            Listener::Unix(_) => None,
        }
    }
}

/// The values of the header `Host` that are answered.
#[derive(Debug, Default)]
struct Hosts {
    names: Vec<String>,
    /// The address that the client has connected to.
    own: Option<IpAddr>,
}

impl Hosts {
    /// Whether a request with this `Host` is meant for this server. Its port does not matter.
    fn include(&self, host: &str) -> bool {
        let name = host_name(host);
        match name.parse::<IpAddr>() {
            Ok(address) => {
                let address = address.to_canonical();
                address.is_loopback() || Some(address) == self.own || self.has(name)
            }
            Err(_) => name.eq_ignore_ascii_case("localhost") || self.has(name),
        }
    }

    fn has(&self, name: &str) -> bool {
        self.names.iter().any(|of| host_name(of).eq_ignore_ascii_case(name))
    }
}

/// The name or the address of `NAME`, `NAME:PORT`, `[ADDRESS]` or `[ADDRESS]:PORT`.
fn host_name(host: &str) -> &str {
    let end = if host.starts_with('[') { host.find(']').map(|at| at + 1) } else { host.find(':') };
    let name = match host.split_at_checked(end.unwrap_or(host.len())) {
        Some((name, port)) if port.is_empty() || port[1..].parse::<u16>().is_ok() && port.starts_with(':') => name,
        // An address without brackets, or nonsense.
        _ => host,
    };
    name.trim_start_matches('[').trim_end_matches([']', '.'])
}

/// A connection that is being served.
struct Served {
    connection: TcpStream,
    thread: JoinHandle<()>,
    /// Whether its request has arrived.
    is_active: Arc<AtomicBool>,
}

/// Ends a connection to make room for another.
fn make_room(connections: &mut VecDeque<Served>) {
    let idle = connections.iter().rposition(|served| !served.is_active.load(Relaxed));
    if let Some(Served { connection, thread, .. }) = connections.remove(idle.unwrap_or(0)) {
        let _ = connection.shutdown(Shutdown::Both);
        let _ = thread.join();
    }
}

/// Status, type and body.
type Answer = (u16, &'static str, String);

/// Returns the answer to a request for a path with a value of the header `Accept`.
type Answerer = fn(&str, &str) -> Answer;

/// Answers requests by what `answer` returns, until no connection can be accepted; returns why.
pub(crate) fn serve(listener: &Listener, answer: Answerer) -> io::Error {
    let mut connections: VecDeque<Served> = VecDeque::new();
    loop {
        let connection = match listener.accept() {
            Ok(connection) => connection,
            Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => continue,
            // No descriptors: some are free when connections have ended.
            Err(_) if !connections.is_empty() => {
                connections.retain(|served| !served.thread.is_finished());
                thread::sleep(PAUSE);
                continue;
            }
            Err(e) => return e,
        };
        connections.retain(|served| !served.thread.is_finished());
        if connections.len() == MAX_CONNECTIONS {
            make_room(&mut connections);
        }
        let Ok(other) = connection.try_clone() else { continue };
        let (hosts, is_active) = (listener.hosts(&connection), Arc::new(AtomicBool::new(false)));
        let active = Arc::clone(&is_active);
        let work = move || {
            // The client may go at any time.
            let _ = converse(&connection, hosts.as_ref(), &active, answer);
            let _ = connection.shutdown(Shutdown::Both);
        };
        match thread::Builder::new().spawn(work) {
            Ok(thread) => connections.push_back(Served { connection: other, thread, is_active }),
            Err(_) => thread::sleep(PAUSE),
        }
    }
}

/// Reads a request, and answers it.
fn converse(connection: &TcpStream, hosts: Option<&Hosts>, active: &AtomicBool, answer: Answerer) -> io::Result<()> {
    let head = read_head(connection)?;
    active.store(true, Relaxed);
    let (status, content_type, body) = match request_of(&head) {
        Some(_) if hosts.is_some_and(|hosts| !hosts.include(&header(&head, "host"))) => (421, TEXT, OTHER_HOST.into()),
        None => (400, TEXT, "no request of HTTP/1\n".into()),
        Some(("GET" | "HEAD", target)) => answer(target, &header(&head, "accept")),
        Some(_) => (405, TEXT, "only GET is answered\n".into()),
    };
    let reason = match status {
        200 => "OK",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        421 => "Misdirected Request",
        _ => "Internal Server Error",
    };
    let mut reply = format!(
        "HTTP/1.1 {status} {reason}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\nVary: Accept\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    if !head.starts_with(b"HEAD ") {
        reply.push_str(&body);
    }
    write_all(connection, reply.as_bytes())
}

/// The method and the path of a request's first line.
fn request_of(head: &[u8]) -> Option<(&str, &str)> {
    let line = std::str::from_utf8(head).ok()?.lines().next()?;
    let mut words = line.split(' ');
    let (method, target, version) = (words.next()?, words.next()?, words.next()?);
    let is_valid = words.next().is_none() && matches!(version, "HTTP/1.0" | "HTTP/1.1");
    is_valid.then_some((method, target.split('?').next()?))
}

/// The values of a header of a request, of which several are a list.
fn header(head: &[u8], name: &str) -> String {
    let head = String::from_utf8_lossy(head);
    let lines = head.lines().skip(1).take_while(|line| !line.is_empty()).filter_map(|line| line.split_once(':'));
    lines.filter(|(of, _)| of.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim()).collect::<Vec<_>>().join(",")
}

/// Reads the lines of a request, up to the empty one.
fn read_head(mut connection: &TcpStream) -> io::Result<Vec<u8>> {
    let (end, mut head) = (Instant::now() + LIMIT, Vec::new());
    while !head.windows(4).any(|bytes| bytes == b"\r\n\r\n") && head.len() < MAX_REQUEST {
        connection.set_read_timeout(Some(left(end)?))?;
        let mut some = [0; 1024];
        match connection.read(&mut some) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(len) => head.extend_from_slice(&some[..len]),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(head)
}

fn write_all(mut connection: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    let end = Instant::now() + LIMIT;
    while !bytes.is_empty() {
        connection.set_write_timeout(Some(left(end)?))?;
        match connection.write(bytes) {
            Ok(len) => bytes = &bytes[len..],
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// The time left, which is not zero.
fn left(end: Instant) -> io::Result<Duration> {
    let left = end.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_and_names_of_the_server_are_its_hosts() {
        let hosts = Hosts { names: vec!["mon.example".into()], own: Some("192.0.2.7".parse().unwrap()) };
        for (host, is_own) in [
            ("localhost", true),
            ("LOCALHOST:9464", true),
            ("127.0.0.1:9464", true),
            ("127.9.9.9", true),
            ("[::1]:9464", true),
            ("[::1]", true),
            ("192.0.2.7:1", true),
            ("[::ffff:192.0.2.7]", true),
            ("Mon.Example.:9464", true),
            ("", false),
            ("evil.example:9464", false),
            ("localhost.evil.example", false),
            ("192.0.2.8", false),
            ("[2001:db8::1]:9464", false),
            ("127.0.0.1.evil.example", false),
            ("localhost,evil.example", false),
            ("localhost:x", false),
            ("user@localhost", false),
        ] {
            assert_eq!(hosts.include(host), is_own, "{host}");
        }
    }
}

// SPDX-License-Identifier: BSD-2-Clause
//! HTTP for `unetmap metrics`: each connection has a thread of its own, one request, and a deadline; their number is
//! bounded. So a client that neither sends nor reads keeps nobody else's answer from being made.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Most connections at a time: one more ends the oldest.
const MAX_CONNECTIONS: usize = 32;
/// Time for a request to arrive, and then for its answer to be read.
const LIMIT: Duration = Duration::from_secs(10);
/// Most bytes of a request, without a body.
const MAX_REQUEST: usize = 8192;
/// Pause when the process has no descriptors or threads left.
const PAUSE: Duration = Duration::from_millis(100);

pub(crate) const TEXT: &str = "text/plain; charset=utf-8";

pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// Of a UNIX socket, too, this is a `TcpStream`: of both, only what all sockets have is used.
    fn accept(&self) -> io::Result<TcpStream> {
        match self {
            Listener::Tcp(listener) => Ok(listener.accept()?.0),
            Listener::Unix(listener) => Ok(OwnedFd::from(listener.accept()?.0).into()),
        }
    }
}

/// Status, type and body.
type Answer = (u16, &'static str, String);

/// What returns the answer to a request for a path with a value of the header `Accept`.
type Answerer = fn(&str, &str) -> Answer;

/// Answers requests by what `answer` returns, until no connection can be accepted; returns why.
pub(crate) fn serve(listener: &Listener, answer: Answerer) -> io::Error {
    let mut connections: VecDeque<(TcpStream, JoinHandle<()>)> = VecDeque::new();
    loop {
        let connection = match listener.accept() {
            Ok(connection) => connection,
            Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => continue,
            // No descriptors: some are free when connections have ended.
            Err(_) if !connections.is_empty() => {
                connections.retain(|(_, thread)| !thread.is_finished());
                thread::sleep(PAUSE);
                continue;
            }
            Err(e) => return e,
        };
        connections.retain(|(_, thread)| !thread.is_finished());
        if connections.len() == MAX_CONNECTIONS
            && let Some((oldest, thread)) = connections.pop_front()
        {
            let _ = oldest.shutdown(Shutdown::Both);
            let _ = thread.join();
        }
        let Ok(other) = connection.try_clone() else { continue };
        let work = move || {
            // The client may go at any time.
            let _ = converse(&connection, answer);
            let _ = connection.shutdown(Shutdown::Both);
        };
        match thread::Builder::new().spawn(work) {
            Ok(thread) => connections.push_back((other, thread)),
            Err(_) => thread::sleep(PAUSE),
        }
    }
}

/// Reads a request, and answers it.
fn converse(connection: &TcpStream, answer: Answerer) -> io::Result<()> {
    let head = read_head(connection)?;
    let (status, content_type, body) = match request_of(&head) {
        None => (400, TEXT, "no request of HTTP/1\n".into()),
        Some(("GET" | "HEAD", target)) => answer(target, &header(&head, "accept")),
        Some(_) => (405, TEXT, "only GET is answered\n".into()),
    };
    let reason = match status {
        200 => "OK",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
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

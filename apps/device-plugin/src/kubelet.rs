// SPDX-License-Identifier: BSD-2-Clause
//! The kubelet: whether it runs, and the plugin's registration with it.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::RecvStream;
use http::{HeaderMap, Request, header};
use prost::Message as _;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tool_common::host::socket::{SocketFile, listen_for_streams};

use crate::api::{DevicePluginOptions, RegisterRequest, VERSION};
use crate::grpc::{self, CONTENT_TYPE, LIMIT};
use crate::options::Options;
use crate::plugin::Plugin;
use crate::server::{self, Task};

/// The method of the kubelet; the authority means nothing at a UNIX socket.
const REGISTER: &str = "http://localhost/v1beta1.Registration/Register";
/// Time after which a kubelet that has accepted the plugin, but does not ask for its devices, is told of it again.
const UNWATCHED: Duration = Duration::from_secs(10);
/// The plugin's socket is root's, as the kubelet is.
const SOCKET_MODE: u32 = 0o600;

/// A file, as opposed to another with the same path later.
#[derive(Clone, Copy, PartialEq, Eq)]
struct FileId {
    device: u64,
    inode: u64,
    changed: (i64, i64),
}

impl FileId {
    fn of(path: &Path) -> Option<FileId> {
        let file = fs::symlink_metadata(path).ok()?;
        let changed = (file.ctime(), file.ctime_nsec());
        Some(FileId { device: file.dev(), inode: file.ino(), changed })
    }
}

/// The plugin at its socket, known to the kubelet. When dropped, nothing is served any more, and the socket is removed.
pub(crate) struct Registration<'a> {
    options: &'a Options,
    kubelet: Option<FileId>,
    own: Option<FileId>,
    file: SocketFile,
    /// Since when no kubelet has asked for the devices.
    unwatched: Option<Instant>,
    _server: Task,
}

impl<'a> Registration<'a> {
    /// Serves, and tells the kubelet so, which calls the plugin before it answers.
    pub(crate) async fn new(plugin: &'a Rc<Plugin>) -> Result<Registration<'a>, String> {
        let options = &plugin.options;
        // Before it is told: one that starts meanwhile is noticed.
        let kubelet = FileId::of(&options.kubelet);
        if kubelet.is_none() {
            return Err(format!("no kubelet has a socket at {}: waiting for it", options.kubelet.display()));
        }
        let (listener, file) = listen(&options.own).map_err(|e| format!("{}: {e}", options.own.display()))?;
        let server = server::start(plugin, listener);
        let own = FileId::of(&options.own);
        let registration = Registration { options, kubelet, own, file, unwatched: None, _server: server };
        match timeout(LIMIT, register(options)).await.unwrap_or_else(|_| Err(format!("no answer within {LIMIT:?}"))) {
            Ok(()) => Ok(registration),
            Err(why) => Err(format!("the kubelet at {} does not register it: {why}", options.kubelet.display())),
        }
    }

    /// Why it does not hold any more, in a sentence.
    pub(crate) fn has_ended(&mut self, plugin: &Plugin) -> Option<&'static str> {
        if FileId::of(&self.options.kubelet) != self.kubelet {
            return Some("the kubelet's socket is another one");
        }
        if FileId::of(&self.options.own) != self.own {
            return Some("the plugin's socket was removed");
        }
        if plugin.is_watched() {
            self.unwatched = None;
            return None;
        }
        let since = *self.unwatched.get_or_insert_with(Instant::now);
        (since.elapsed() > UNWATCHED).then_some("the kubelet does not ask for the devices")
    }
}

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        self.file.remove();
    }
}

/// Listens at a path, where a plugin that was killed may have left its socket.
fn listen(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
    let (listener, file) = listen_for_streams(path, SOCKET_MODE).map_err(|e| match e.kind() {
        io::ErrorKind::AddrInUse => {
            io::Error::other("another plugin serves the same resource there, or it is a file which is no socket")
        }
        _ => e,
    })?;
    listener.set_nonblocking(true)?;
    Ok((UnixListener::from_std(listener)?, file))
}

/// Calls the kubelet.
async fn register(options: &Options) -> Result<(), String> {
    let request = RegisterRequest {
        version: VERSION.into(),
        endpoint: options.endpoint.clone(),
        resource_name: options.resource.clone(),
        options: Some(DevicePluginOptions::default()),
    };
    let stream = UnixStream::connect(&options.kubelet).await.map_err(|e| e.to_string())?;
    let (head, body) = call(stream, REGISTER, &request.encode_to_vec()).await.map_err(|e| e.to_string())?;
    if head.status != http::StatusCode::OK {
        return Err(format!("HTTP status {}", head.status));
    }
    status_of(&head.headers, body).await
}

/// Sends a message, and returns the answer's beginning. The connection ends with the body.
async fn call(stream: UnixStream, method: &str, message: &[u8]) -> Result<(http::response::Parts, Body), h2::Error> {
    let (client, connection) = h2::client::handshake(stream).await?;
    let mut driver = JoinSet::new();
    driver.spawn_local(async move {
        let _ = connection.await;
    });
    let request = Request::post(method).header(header::CONTENT_TYPE, CONTENT_TYPE).header(header::TE, "trailers");
    let request = request.body(()).map_err(|_| h2::Reason::INTERNAL_ERROR)?;
    let (response, mut stream) = client.ready().await?.send_request(request, false)?;
    grpc::send(&mut stream, grpc::frame(message)).await?;
    stream.send_data(Bytes::new(), true)?;
    let (head, body) = response.await?.into_parts();
    Ok((head, Body { stream: body, _driver: driver }))
}

struct Body {
    stream: RecvStream,
    _driver: JoinSet<()>,
}

/// The outcome of a call: in the headers if there is no message, else in the trailers.
async fn status_of(headers: &HeaderMap, mut body: Body) -> Result<(), String> {
    let outcome = |headers: &HeaderMap| {
        let code = headers.get("grpc-status")?;
        let message = headers.get("grpc-message").map_or(&b""[..], |message| message.as_bytes());
        Some(match code.as_bytes() {
            b"0" => Ok(()),
            code => Err(format!("{} (status {})", grpc::decode_percent(message), String::from_utf8_lossy(code))),
        })
    };
    if let Some(outcome) = outcome(headers) {
        return outcome;
    }
    // The message says nothing.
    let received = grpc::receive(&mut body.stream).await;
    let trailers = body.stream.trailers().await.map_err(|e| e.to_string())?;
    match trailers.as_ref().and_then(outcome) {
        Some(outcome) => outcome,
        None => Err(received.err().map_or("an answer without a status".into(), |status| status.message)),
    }
}

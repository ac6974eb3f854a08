// SPDX-License-Identifier: BSD-2-Clause
//! The plugin's server, in one thread: a task for each connection, and one for each call in it. Their number is
//! bounded, and a peer that neither sends nor reads delays no other.

use std::collections::VecDeque;
use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{Method, Request, Response, StatusCode, header};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixListener;
use tokio::task::{JoinHandle, JoinSet, spawn_local};
use tokio::time::{sleep, timeout};

use crate::grpc::{self, CONTENT_TYPE, LIMIT};
use crate::plugin::{Answer, Plugin};

/// Most connections at a time: one more ends the oldest.
const MAX_CONNECTIONS: usize = 16;
/// Most calls at a time in a connection; the kubelet has one that stays, and one for each pod that starts.
const MAX_CALLS: u32 = 32;
/// Bytes of the longest list of headers.
const MAX_HEADERS: u32 = 8192;
/// Pause when the process has no descriptors left.
const PAUSE: Duration = Duration::from_millis(100);

/// A task that ends when it is dropped.
pub(crate) struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Serves at a socket until the task is dropped.
pub(crate) fn start(plugin: &Rc<Plugin>, listener: UnixListener) -> Task {
    let plugin = Rc::clone(plugin);
    Task(spawn_local(async move {
        let mut connections: VecDeque<Task> = VecDeque::new();
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                sleep(PAUSE).await;
                continue;
            };
            connections.retain(|task| !task.0.is_finished());
            if connections.len() == MAX_CONNECTIONS {
                connections.pop_front();
            }
            connections.push_back(Task(spawn_local(converse(Rc::clone(&plugin), stream))));
        }
    }))
}

/// Answers the calls of a connection. Its peer may go, or break the protocol, at any time.
async fn converse<T: AsyncRead + AsyncWrite + Unpin + 'static>(plugin: Rc<Plugin>, stream: T) {
    let mut builder = h2::server::Builder::new();
    builder.max_concurrent_streams(MAX_CALLS).max_header_list_size(MAX_HEADERS);
    let Ok(Ok(mut connection)) = timeout(LIMIT, builder.handshake(stream)).await else { return };
    // They end with this task.
    let mut calls = JoinSet::new();
    while let Some(Ok((request, respond))) = connection.accept().await {
        while calls.try_join_next().is_some() {}
        let plugin = Rc::clone(&plugin);
        calls.spawn_local(async move {
            let _ = answer(&plugin, request, respond).await;
        });
    }
}

async fn answer(
    plugin: &Plugin,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
) -> Result<(), h2::Error> {
    let (head, mut body) = request.into_parts();
    let content = head.headers.get(header::CONTENT_TYPE).map_or(&b""[..], |value| value.as_bytes());
    let mut response = Response::new(());
    if head.method != Method::POST || !content.starts_with(CONTENT_TYPE.as_bytes()) {
        *response.status_mut() = match head.method {
            Method::POST => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            _ => StatusCode::METHOD_NOT_ALLOWED,
        };
        return respond.send_response(response, true).map(drop);
    }
    response.headers_mut().insert(header::CONTENT_TYPE, CONTENT_TYPE);
    let message = grpc::receive(&mut body).await;
    match message.and_then(|message| plugin.call(head.uri.path(), &message)) {
        Err(status) => {
            status.add_to(response.headers_mut());
            respond.send_response(response, true).map(drop)
        }
        Ok(Answer::Message(message)) => {
            let mut stream = respond.send_response(response, false)?;
            grpc::send(&mut stream, grpc::frame(&message)).await?;
            stream.send_trailers(grpc::trailers())
        }
        Ok(Answer::Devices) => list(plugin, respond.send_response(response, false)?).await,
    }
}

/// Sends the devices, now and after each change, until the peer ends the call. A peer that reads slowly gets the last
/// state, and not each.
async fn list(plugin: &Plugin, mut stream: SendStream<Bytes>) -> Result<(), h2::Error> {
    let (mut changes, _watcher) = plugin.watch();
    loop {
        changes.borrow_and_update();
        grpc::send(&mut stream, grpc::frame(&plugin.devices())).await?;
        let mut changed = pin!(changes.changed());
        let goes_on = poll_fn(|cx| match (changed.as_mut().poll(cx), stream.poll_reset(cx)) {
            (_, Poll::Ready(reset)) => Poll::Ready(reset.map(|_| false)),
            (Poll::Ready(changed), Poll::Pending) => Poll::Ready(Ok(changed.is_ok())),
            (Poll::Pending, Poll::Pending) => Poll::Pending,
        });
        if !goes_on.await? {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests;

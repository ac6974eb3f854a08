// SPDX-License-Identifier: BSD-2-Clause
//! Calls as the kubelet makes them, and such as it does not make, over connections in memory.

use super::*;
use crate::api::{HEALTHY, ListAndWatchResponse, UNHEALTHY};
use crate::plugin::tests::plugin;
use bytes::BytesMut;
use h2::client::SendRequest;
use proptest::prelude::*;
use prost::Message as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::task::LocalSet;

const SERVICE: &str = "/v1beta1.DevicePlugin/";

/// Runs a test beside a plugin with a healthy daemon, with the client's end of a connection to it.
fn with_connection<T>(test: impl AsyncFnOnce(Rc<Plugin>, DuplexStream) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    LocalSet::new().block_on(&runtime.expect("a runtime"), async {
        let plugin = Rc::new(plugin("--count 2"));
        plugin.set_serves(true);
        let (near, far) = duplex(1 << 16);
        let _server = Task(spawn_local(converse(Rc::clone(&plugin), far)));
        test(plugin, near).await
    })
}

async fn client(stream: DuplexStream) -> SendRequest<Bytes> {
    let (client, connection) = h2::client::handshake(stream).await.expect("HTTP/2");
    spawn_local(async move {
        let _ = connection.await;
    });
    client.ready().await.expect("a connection")
}

/// Makes a call with this body; returns HTTP's status, gRPC's, and the message.
async fn call(client: &mut SendRequest<Bytes>, request: Request<()>, body: &[u8]) -> (u16, String, Bytes) {
    let (response, mut stream) = client.send_request(request, false).expect("a request");
    // A server that has refused it does not take all.
    let _ = grpc::send(&mut stream, Bytes::copy_from_slice(body)).await;
    let _ = stream.send_data(Bytes::new(), true);
    let (head, mut body) = response.await.expect("an answer").into_parts();
    let mut bytes = BytesMut::new();
    while let Some(Ok(data)) = body.data().await {
        bytes.extend_from_slice(&data);
    }
    let trailers = body.trailers().await.ok().flatten().unwrap_or_default();
    let status = head.headers.get("grpc-status").or(trailers.get("grpc-status"));
    let status = status.map_or("none", |status| status.to_str().expect("a number")).to_owned();
    (head.status.as_u16(), status, bytes.freeze())
}

fn post(method: &str) -> Request<()> {
    let uri = format!("http://localhost{SERVICE}{method}");
    Request::post(uri).header(header::CONTENT_TYPE, "application/grpc+proto").body(()).expect("a request")
}

#[test]
fn calls_are_answered_or_refused() {
    with_connection(async |_, near| {
        let mut client = client(near).await;
        let empty = grpc::frame(b"");
        let (http, status, body) = call(&mut client, post("GetDevicePluginOptions"), &empty).await;
        assert_eq!((http, &*status, &body[..]), (200, "0", &empty[..]));
        let allocation = grpc::frame(b"\x0a\x08\x0a\x06port-1");
        let (http, status, body) = call(&mut client, post("Allocate"), &allocation).await;
        assert_eq!((http, &*status), (200, "0"));
        assert!(body.windows(14).any(|part| part == b"UNETMAP_SOCKET"), "{body:?}");
        let (long, cut, more) = (vec![0; 3 << 20], &allocation[..7], [&allocation[..], b"\0"].concat());
        for (method, body, wanted) in [
            ("Allocate", &b""[..], "3"),
            ("Allocate", cut, "3"),
            ("Allocate", &more, "3"),
            ("Allocate", b"\0\0\0\0\x01\xff", "3"),
            ("Allocate", b"\x01\0\0\0\0", "12"),
            ("Allocate", &long, "8"),
            ("Other", &empty, "12"),
            ("", &empty, "12"),
        ] {
            let (http, status, _) = call(&mut client, post(method), body).await;
            assert_eq!((http, &*status), (200, wanted), "{method} {} bytes", body.len());
        }
        let mut other = post("Allocate");
        other.headers_mut().insert(header::CONTENT_TYPE, "text/plain".parse().expect("a value"));
        assert_eq!(call(&mut client, other, &empty).await.0, 415);
        let mut get = post("Allocate");
        *get.method_mut() = Method::GET;
        assert_eq!(call(&mut client, get, &empty).await.0, 405);
        assert_eq!(call(&mut client, post("Allocate"), &allocation).await.1, "0", "it goes on");
    });
}

/// Reads a list of devices from the stream; returns their health.
async fn health(body: &mut RecvStream) -> Vec<String> {
    let data = body.data().await.expect("goes on").expect("data");
    body.flow_control().release_capacity(data.len()).expect("it was received");
    let list = ListAndWatchResponse::decode(&data[5..]).expect("a message");
    list.devices.into_iter().map(|device| device.health).collect()
}

#[test]
fn a_watcher_is_told_each_change_until_it_ends_the_call() {
    with_connection(async |plugin, near| {
        let mut client = client(near).await;
        let (response, mut stream) = client.send_request(post("ListAndWatch"), false).expect("a request");
        stream.send_data(grpc::frame(b""), true).expect("a message");
        let mut body = response.await.expect("an answer").into_body();
        for (serves, text) in [(true, HEALTHY), (false, UNHEALTHY), (true, HEALTHY)] {
            plugin.set_serves(serves);
            assert_eq!(health(&mut body).await, [text, text]);
            assert!(plugin.is_watched());
        }
        stream.send_reset(h2::Reason::CANCEL);
        drop((body, stream));
        while plugin.is_watched() {
            sleep(Duration::from_millis(1)).await;
        }
        // The connection ends without a word.
        let (response, mut stream) = client.send_request(post("ListAndWatch"), false).expect("a request");
        stream.send_data(grpc::frame(b""), true).expect("a message");
        let _body = response.await.expect("an answer").into_body();
        assert!(plugin.is_watched());
    });
}

#[test]
fn a_request_without_an_end_is_refused_after_a_while() {
    with_connection(async |_, near| {
        let mut client = client(near).await;
        let (response, mut stream) = client.send_request(post("Allocate"), false).expect("a request");
        stream.send_data(Bytes::from_static(b"\0\0"), false).expect("a part");
        assert_eq!(response.await.expect("an answer").headers()["grpc-status"], "4");
    });
}

#[test]
fn a_connection_without_a_word_is_closed_after_a_while() {
    with_connection(async |_, mut near| {
        let mut bytes = Vec::new();
        near.read_to_end(&mut bytes).await.expect("its end");
    });
}

#[test]
fn calls_end_with_their_connection() {
    let plugin = with_connection(async |plugin, near| {
        let mut client = client(near).await;
        for _ in 0..5 {
            let (response, mut stream) = client.send_request(post("ListAndWatch"), false).expect("a request");
            stream.send_data(grpc::frame(b""), true).expect("a message");
            // Never read.
            std::mem::forget(response.await.expect("an answer"));
        }
        assert!(plugin.is_watched());
        plugin
    });
    assert!(!plugin.is_watched());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Frames of HTTP/2 with any contents after a valid beginning; no panic, and the next connection is served.
    #[test]
    fn any_bytes_end_at_most_their_connection(
        frames in proptest::collection::vec((0u8..12, any::<u8>(), 0u32..6, proptest::collection::vec(any::<u8>(), 0..60)), 0..20),
        is_plain in any::<bool>(),
    ) {
        with_connection(async |plugin, mut near| {
            let mut bytes = if is_plain { Vec::new() } else { b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec() };
            for (kind, flags, stream, payload) in frames {
                bytes.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
                bytes.extend_from_slice(&[kind, flags]);
                bytes.extend_from_slice(&stream.to_be_bytes());
                bytes.extend_from_slice(&payload);
            }
            // It may have closed the connection before the end.
            let _ = near.write_all(&bytes).await;
            let _ = near.shutdown().await;
            let _ = near.read_to_end(&mut Vec::new()).await;
            let (near, far) = duplex(1 << 16);
            let _server = Task(spawn_local(converse(plugin, far)));
            let mut client = client(near).await;
            assert_eq!(call(&mut client, post("GetDevicePluginOptions"), &grpc::frame(b"")).await.1, "0");
        });
    }
}

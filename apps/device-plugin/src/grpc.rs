// SPDX-License-Identifier: BSD-2-Clause
//! gRPC over HTTP/2, as much as the kubelet's API needs: messages without compression, one in each direction, or one
//! and a stream of answers.
//!
//! ```text
//! headers, for each message: compressed (1 byte, 0) | length (4 bytes, big endian) | message, trailers: grpc-status
//! ```

use std::fmt::Write as _;
use std::future::poll_fn;
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use h2::{RecvStream, SendStream};
use http::{HeaderMap, HeaderValue};
use tokio::time::timeout;

/// Time for a message to arrive.
pub(crate) const LIMIT: Duration = Duration::from_secs(10);
/// Bytes of the longest message that is read: a request with all devices of a node is far shorter.
const MAX_MESSAGE: usize = 1 << 20;
/// Bytes before a message.
const PREFIX: usize = 5;
pub(crate) const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("application/grpc");

/// gRPC's numbers of outcomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    Ok = 0,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    ResourceExhausted = 8,
    Unimplemented = 12,
    Unavailable = 14,
}

/// Why a call failed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Status {
    pub(crate) code: Code,
    pub(crate) message: String,
}

impl Status {
    pub(crate) fn new(code: Code, message: String) -> Status {
        Status { code, message }
    }

    fn malformed(message: String) -> Status {
        Status::new(Code::InvalidArgument, message)
    }

    /// Adds it to the headers of an answer without messages, or to the trailers of one with some.
    pub(crate) fn add_to(&self, headers: &mut HeaderMap) {
        headers.insert("grpc-status", HeaderValue::from(self.code as u16));
        // A percent-encoded text is a valid value.
        if let Ok(text) = HeaderValue::from_str(&encode_percent(&self.message)) {
            headers.insert("grpc-message", text);
        }
    }
}

/// The trailers of a call that succeeded.
pub(crate) fn trailers() -> HeaderMap {
    HeaderMap::from_iter([(http::HeaderName::from_static("grpc-status"), HeaderValue::from(Code::Ok as u16))])
}

/// A message as it is sent.
pub(crate) fn frame(message: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(PREFIX + message.len());
    bytes.put_u8(0);
    bytes.put_u32(message.len() as u32);
    bytes.put_slice(message);
    bytes.freeze()
}

/// Reads the only message of a call or of an answer, to the end of the stream.
pub(crate) async fn receive(body: &mut RecvStream) -> Result<Bytes, Status> {
    let read = async {
        let mut bytes = BytesMut::new();
        while let Some(data) = body.data().await {
            let data = data.map_err(|e| Status::new(Code::Unavailable, e.to_string()))?;
            if bytes.len() + data.len() > PREFIX + MAX_MESSAGE {
                let text = format!("a message has at most {MAX_MESSAGE} bytes");
                return Err(Status::new(Code::ResourceExhausted, text));
            }
            bytes.extend_from_slice(&data);
            // It fails only if more is released than was received.
            let _ = body.flow_control().release_capacity(data.len());
        }
        unframe(bytes.freeze())
    };
    let late = || Status::new(Code::DeadlineExceeded, format!("no complete message within {LIMIT:?}"));
    timeout(LIMIT, read).await.unwrap_or_else(|_| Err(late()))
}

/// The message in a body, which has exactly one.
fn unframe(mut body: Bytes) -> Result<Bytes, Status> {
    if body.len() < PREFIX {
        return Err(Status::malformed(format!("a body of {} bytes has no message", body.len())));
    }
    let prefix = body.split_to(PREFIX);
    if prefix[0] != 0 {
        return Err(Status::new(Code::Unimplemented, "compressed messages are not supported".into()));
    }
    let length = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize;
    if length != body.len() {
        let text = format!("a message of {length} bytes was announced, {} bytes came", body.len());
        return Err(Status::malformed(text));
    }
    Ok(body)
}

/// Sends bytes as far as the peer takes them: nothing is queued for one that does not read.
pub(crate) async fn send(stream: &mut SendStream<Bytes>, mut bytes: Bytes) -> Result<(), h2::Error> {
    while !bytes.is_empty() {
        stream.reserve_capacity(bytes.len());
        let capacity = loop {
            match poll_fn(|cx| stream.poll_capacity(cx)).await {
                Some(Ok(0)) => {}
                Some(Ok(capacity)) => break capacity,
                Some(Err(e)) => return Err(e),
                None => return Err(h2::Reason::CANCEL.into()),
            }
        };
        stream.send_data(bytes.split_to(capacity.min(bytes.len())), false)?;
    }
    Ok(())
}

/// gRPC's encoding of texts in headers.
fn encode_percent(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => encoded.push(byte.into()),
            // Writing to a string does not fail.
            _ => _ = write!(encoded, "%{byte:02X}"),
        }
    }
    encoded
}

/// Its inverse; what is not encoded as it should be stays as it is.
pub(crate) fn decode_percent(text: &[u8]) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text);
    while let [first, after @ ..] = rest {
        let digits = after.get(..2).filter(|_| *first == b'%').and_then(|digits| std::str::from_utf8(digits).ok());
        let digits = digits.filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let coded = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(coded.unwrap_or(*first));
        rest = if coded.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_body_has_one_message() {
        assert_eq!(unframe(frame(b"abc")).unwrap(), "abc");
        assert_eq!(unframe(frame(b"")).unwrap(), "");
        for (body, code) in [
            (&b""[..], Code::InvalidArgument),
            (b"\0\0\0\0", Code::InvalidArgument),
            (b"\0\0\0\0\x02a", Code::InvalidArgument),
            (b"\0\0\0\0\x01ab", Code::InvalidArgument),
            (b"\0\xff\xff\xff\xffa", Code::InvalidArgument),
            (b"\0\0\0\0\0\0\0\0\0\0", Code::InvalidArgument),
            (b"\x01\0\0\0\x01a", Code::Unimplemented),
        ] {
            assert_eq!(unframe(Bytes::from_static(body)).unwrap_err().code, code, "{body:?}");
        }
    }

    #[test]
    fn the_message_of_a_status_is_a_valid_header() {
        let mut headers = HeaderMap::new();
        Status::new(Code::Unavailable, "100 % of \"ä\"\nare\0gone".into()).add_to(&mut headers);
        assert_eq!(headers["grpc-status"], "14");
        assert_eq!(headers["grpc-message"], "100 %25 of \"%C3%A4\"%0Aare%00gone");
    }

    proptest! {
        #[test]
        fn texts_survive_their_encoding(text in any::<String>(), bytes in any::<Vec<u8>>()) {
            prop_assert_eq!(decode_percent(encode_percent(&text).as_bytes()), text);
            let _ = decode_percent(&bytes);
        }
    }
}

// SPDX-License-Identifier: BSD-2-Clause
//! TLS to a collector (RFC 7011, 11.3), by rustls.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, ProtocolVersion, RootCertStore};
use tool_common::source::{self, MAX_RULES};

use super::collector::Security;

/// The system's authorities, of Debian and of Fedora.
const AUTHORITIES: [&str; 2] = ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"];
/// Longest wait for what a collector says after the handshake.
const ANSWER: Duration = Duration::from_secs(3);
/// Pause while a handshake goes on.
const PAUSE: Duration = Duration::from_millis(1);

/// The configuration of all connections to a collector.
pub(super) struct Client {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl Client {
    /// # Errors
    /// A sentence: a file cannot be read, or has nothing of use.
    pub(super) fn new(host: &str, security: &Security) -> Result<Client, String> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| format!("{host} is neither a name nor an address, as the collector's certificate has it"))?;
        let system = || AUTHORITIES.iter().map(Path::new).find(|path| path.exists()).map(Path::to_owned);
        let Some(path) = security.authorities.clone().or_else(system) else {
            return Err(
                "this system has no certificates of authorities; give those of the collector's (--ca FILE)".into()
            );
        };
        let mut roots = RootCertStore::empty();
        let (good, _) = roots.add_parsable_certificates(certificates(&path)?);
        if good == 0 {
            return Err(format!("{}: no certificate of an authority is in it", path.display()));
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.map_err(|e| e.to_string())?.with_root_certificates(roots);
        let config = match &security.identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let wrong = |e: &dyn std::fmt::Display| format!("{}: {e}", key.display());
                let bytes = source::read_secret(key).map_err(|why| wrong(&why))?;
                let secret = PrivateKeyDer::from_pem_slice(&bytes).map_err(|e| wrong(&e))?;
                builder.with_client_auth_cert(certificates(certificate)?, secret).map_err(|e| wrong(&e))?
            }
        };
        Ok(Client { config: Arc::new(config), name })
    }

    /// Makes sure of the collector, and agrees on keys, over a socket that does not wait.
    ///
    /// # Errors
    /// The collector is another one, does not know this program, or takes too long.
    pub(super) fn handshake(&self, socket: &TcpStream, until: Instant) -> io::Result<Tls> {
        let connection =
            ClientConnection::new(Arc::clone(&self.config), self.name.clone()).map_err(io::Error::other)?;
        let (mut tls, mut socket) = (Tls(connection), socket);
        while tls.0.is_handshaking() || tls.0.wants_write() {
            let done = match tls.0.wants_write() {
                true => tls.0.write_tls(&mut socket),
                false => tls.receive(&mut socket),
            };
            if !progress(done)? && Instant::now() >= until {
                return Err(ErrorKind::TimedOut.into());
            }
        }
        // In this version a collector refuses a certificate after the handshake; others mostly send tickets.
        let is_refused_late = tls.0.protocol_version() == Some(ProtocolVersion::TLSv1_3);
        let until = Instant::now() + ANSWER;
        while is_refused_late && !progress(tls.receive(&mut socket))? && Instant::now() < until {}
        Ok(tls)
    }
}

/// Whether a call on a socket that does not wait has failed only for now.
pub(super) fn is_passing(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// Whether a call has read or written something. Waits a little if it has not.
fn progress(done: io::Result<usize>) -> io::Result<bool> {
    match done {
        Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
        Ok(_) => Ok(true),
        Err(e) if is_passing(&e) => {
            std::thread::sleep(PAUSE);
            Ok(false)
        }
        Err(e) => Err(e),
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let wrong = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
    let bytes = source::read(path, MAX_RULES).map_err(|why| wrong(&why))?;
    let all = CertificateDer::pem_slice_iter(&bytes).collect::<Result<Vec<_>, _>>().map_err(|e| wrong(&e))?;
    if all.is_empty() { Err(wrong(&"no certificate is in it")) } else { Ok(all) }
}

/// The state of TLS in a connection.
pub(super) struct Tls(ClientConnection);

impl Tls {
    /// Takes what is to be sent, after all before was written.
    pub(super) fn take(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.writer().write_all(bytes)
    }

    /// Whether something is to be written.
    pub(super) fn has_more(&self) -> bool {
        self.0.wants_write()
    }

    pub(super) fn write(&mut self, socket: &mut TcpStream) -> io::Result<usize> {
        self.0.write_tls(socket)
    }

    /// Reads what the collector sends; its text counts for nothing.
    pub(super) fn read(&mut self, socket: &mut TcpStream) -> io::Result<usize> {
        let read = self.receive(socket)?;
        let text = io::copy(&mut self.0.reader().take(1 << 20), &mut io::sink());
        match text {
            // The collector has said that it ends, and that is all.
            Ok(_) => Ok(0),
            Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(read),
            Err(e) => Err(e),
        }
    }

    fn receive(&mut self, socket: &mut (impl io::Read + io::Write)) -> io::Result<usize> {
        let read = self.0.read_tls(socket)?;
        if read > 0
            && let Err(e) = self.0.process_new_packets()
        {
            // Tells the collector why. If the socket does not take that, it sees the connection's end.
            let _ = self.0.write_tls(socket);
            return Err(io::Error::other(e));
        }
        Ok(read)
    }

    /// Says that nothing follows.
    pub(super) fn end(&mut self) {
        self.0.send_close_notify();
    }
}

//! netmap requests that are sent to the daemon without opening a port.

use unetmap::Error;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Sends a netmap request about the port `name`. Returns the name and the body of the reply.
///
/// # Errors
/// The daemon refused the request, or cannot be started.
pub fn send<T: FromBytes + IntoBytes + Immutable>(reqtype: u16, name: &str, body: T) -> Result<(String, T), Error> {
    unetmap::request(reqtype, name, &body)
}

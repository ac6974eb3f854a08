//! netmap's requests, asked of the daemon.

use std::os::fd::AsFd;

use unetmap::Error;
use unetmap::errno::EINVAL;
use unetmap::file::File;
use unetmap::request::Request;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Asks about the port `name`; returns the name and the body of the answer.
///
/// # Errors
/// The daemon refuses, or there is none.
pub fn ask<T: FromBytes + IntoBytes + Immutable>(reqtype: u16, name: &str, body: T) -> Result<(String, T), Error> {
    let refused = |errno, why: &str| Error::Refused { asked: name.into(), errno, why: why.into() };
    let request = Request::new(reqtype, name, body.as_bytes())
        .map_err(|errno| refused(errno, "the name is longer than 63 bytes"))?;
    let (fd, file) = File::open()?;
    let told = file.request(fd.as_fd(), &request)?;
    if told.errno != 0 {
        return Err(refused(told.errno, &told.why));
    }
    let answer = told.request.as_ref().and_then(|request| Some((request.name()?.to_string(), request.body_as()?)));
    answer.ok_or_else(|| refused(EINVAL, "the daemon's answer makes no sense"))
}

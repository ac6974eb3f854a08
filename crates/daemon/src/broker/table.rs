// SPDX-License-Identifier: BSD-2-Clause
//! The form in which an operation is written once: its request, its reply, and its work.
//!
//! ```text
//! /// The link of an interface.
//! fn link[netns: Netns] Link(index: u32) -> Option<Link> { inside(&netns, || link::by_index(index)) }
//!    |    |             |                   |              '- run by the broker, on arguments that it has checked
//!    |    |             |                   '- a [`Reply`]
//!    |    |             '- the request as it is sent; `in LANE` follows, unless it takes the control thread's
//!    |    '- the descriptors that come with it; `[] [..files]`: any number of them
//!    '- the daemon's function; `fn insert of XdpId`: a method, whose request begins with the object
//! ```
//! A request keeps its form once there are daemons that know it: after a replacement a daemon may ask the broker of the
//! daemon before. An argument is checked where its type is decoded, a descriptor by [`Descriptors::take`], the rest by
//! the work.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::vec;

use serde::Serialize;
use serde::de::DeserializeOwned;
use unetmap_sys::fuse::{self, Device};
use unetmap_sys::link::{LinkWatch, NetnsLinkWatch};
use unetmap_sys::netns::Netns;

/// The result of an operation as it is sent: its value, and descriptors.
pub(crate) type Answer = (serde_json::Value, Vec<OwnedFd>);

/// The reply of an operation.
pub(crate) trait Reply {
    /// The result of its work, in the broker and in the daemon.
    type Done;

    fn encode(done: Self::Done) -> io::Result<Answer>;

    /// # Errors
    /// It is another operation's, or lacks a descriptor.
    fn decode(answer: Answer) -> io::Result<Self::Done>;
}

impl<T: Serialize + DeserializeOwned> Reply for T {
    type Done = T;

    fn encode(done: T) -> io::Result<Answer> {
        Ok((serde_json::to_value(done)?, Vec::new()))
    }

    fn decode((value, _): Answer) -> io::Result<T> {
        Ok(serde_json::from_value(value)?)
    }
}

/// A reply of a value and descriptors.
pub(crate) struct With<V, T>(V, T);

impl<V: Serialize + DeserializeOwned, T: Descriptors> Reply for With<V, T> {
    type Done = (V, T);

    fn encode((value, fds): (V, T)) -> io::Result<Answer> {
        let mut sent = Vec::new();
        fds.put(&mut sent)?;
        Ok((serde_json::to_value(value)?, sent))
    }

    fn decode((value, fds): Answer) -> io::Result<(V, T)> {
        Ok((serde_json::from_value(value)?, T::take(&mut fds.into_iter())?))
    }
}

/// A reply of descriptors alone.
pub(crate) struct Fd<T>(T);

impl<T: Descriptors> Reply for Fd<T> {
    type Done = T;

    fn encode(done: T) -> io::Result<Answer> {
        With::encode(((), done))
    }

    fn decode(answer: Answer) -> io::Result<T> {
        With::<(), T>::decode(answer).map(|((), fds)| fds)
    }
}

/// Descriptors of a request or a reply.
pub(crate) trait Descriptors: Sized {
    /// Takes them from those that came with a message.
    ///
    /// # Errors
    /// One is missing, or is of another kind.
    fn take(fds: &mut vec::IntoIter<OwnedFd>) -> io::Result<Self>;

    /// Appends them to those of a message.
    fn put(self, fds: &mut Vec<OwnedFd>) -> io::Result<()>;
}

macro_rules! descriptors {
    ($($type:ty: $check:expr;)*) => { $(
        impl Descriptors for $type {
            fn take(fds: &mut vec::IntoIter<OwnedFd>) -> io::Result<Self> {
                let missing = || io::Error::new(io::ErrorKind::InvalidInput, "a descriptor is missing");
                fds.next().ok_or_else(missing).and_then($check)
            }

            fn put(self, fds: &mut Vec<OwnedFd>) -> io::Result<()> {
                fds.push(self.as_fd().try_clone_to_owned()?);
                Ok(())
            }
        }
    )* };
}

descriptors! {
    OwnedFd: Ok;
    Netns: Netns::from_fd;
    LinkWatch: |fd| Ok(LinkWatch::from_fd(fd));
    NetnsLinkWatch: NetnsLinkWatch::from_fd;
    // Other devices understand the same numbers of requests in other ways.
    Device: |fd| match fuse::is_device(&fd) {
        true => Ok(Device::from_fd(fd)),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "this is not /dev/fuse")),
    };
}

impl<T: Descriptors> Descriptors for Option<T> {
    fn take(fds: &mut vec::IntoIter<OwnedFd>) -> io::Result<Self> {
        if fds.len() == 0 { Ok(None) } else { T::take(fds).map(Some) }
    }

    fn put(self, fds: &mut Vec<OwnedFd>) -> io::Result<()> {
        self.map_or(Ok(()), |some| some.put(fds))
    }
}

impl<T: Descriptors> Descriptors for Vec<T> {
    fn take(fds: &mut vec::IntoIter<OwnedFd>) -> io::Result<Self> {
        let mut all = Vec::new();
        while fds.len() > 0 {
            all.push(T::take(fds)?);
        }
        Ok(all)
    }

    fn put(self, fds: &mut Vec<OwnedFd>) -> io::Result<()> {
        self.into_iter().try_for_each(|one| one.put(fds))
    }
}

impl<A: Descriptors, B: Descriptors> Descriptors for (A, B) {
    fn take(fds: &mut vec::IntoIter<OwnedFd>) -> io::Result<Self> {
        Ok((A::take(fds)?, B::take(fds)?))
    }

    fn put(self, fds: &mut Vec<OwnedFd>) -> io::Result<()> {
        self.0.put(fds)?;
        self.1.put(fds)
    }
}

/// Declares `Request`, `Broker::serve`, and the daemon's functions, which `call` sends: see the module.
macro_rules! operations {
    ($broker:ident: $(
        $(#[$doc:meta])*
        $(fn $name:ident $(of $object:ident)?)? [$($fd:ident: $fd_type:ty),*] $([..$rest:ident])?
        $variant:ident $(($($arg:ident: $type:ty),*))? $({ $($field:ident: $field_type:ty),* })? $(in $lane:ident)?
        -> $reply:ty $work:block
    )*) => {
        /// An operation.
        #[derive(Debug, Clone, Serialize, Deserialize)]
        pub(super) enum Request {
            $($(#[$doc])* $variant $(($($type),*))? $({ $($field: $field_type),* })?,)*
        }

        impl Request {
            fn lane(&self) -> Lane {
                match self {
                    $($(Request::$variant { .. } => Lane::$lane,)?)*
                    _ => Lane::Control,
                }
            }
        }

        impl Broker {
            /// Does an operation. The descriptors are closed afterwards.
            pub(super) fn serve(&self, request: Request, fds: Vec<OwnedFd>) -> io::Result<Answer> {
                let ($broker, mut fds) = (self, fds.into_iter());
                match request {
                    $(Request::$variant $(($($arg),*))? $({ $($field),* })? => {
                        $(let $fd = <$fd_type as Descriptors>::take(&mut fds)?;)*
                        $(let $rest = &mut fds;)?
                        let done: io::Result<<$reply as Reply>::Done> = $work;
                        <$reply as Reply>::encode(done?)
                    })*
                }
            }
        }

        $(operations! {
            @daemon [$($name $(of $object)?)?] [$($fd)* $(..$rest)?] $variant
            ($($($arg: $type),*)? $($($field: $field_type),*)?) $({ $($field),* })?
            -> $reply, $(#[$doc])*
        })*
    };
    (@daemon [] $($unused:tt)*) => {};
    (@daemon [$name:ident] [$($fd:ident)* $(..$rest:ident)?] $variant:ident
        ($($arg:ident: $type:ty),*) $({ $($field:ident),* })? -> $reply:ty, $(#[$doc:meta])*
    ) => {
        $(#[$doc])*
        pub(crate) fn $name(
            $($fd: impl AsFd,)* $($rest: &[BorrowedFd<'_>],)? $($arg: impl Into<$type>),*
        ) -> io::Result<<$reply as Reply>::Done> {
            $(let $arg: $type = $arg.into();)*
            let fds = [$($fd.as_fd()),*].into_iter()$(.chain($rest.iter().copied()))?;
            call::<$reply>(operations!(@request $variant ($($arg),*) $({ $($field),* })?), fds.collect())
        }
    };
    (@daemon [$name:ident of $object:ident] [$($fd:ident)*] $variant:ident
        ($this:ident: $this_type:ty $(, $arg:ident: $type:ty)*) -> $reply:ty, $(#[$doc:meta])*
    ) => {
        impl $object {
            $(#[$doc])*
            pub(crate) fn $name(
                self, $($fd: impl AsFd,)* $($arg: impl Into<$type>),*
            ) -> io::Result<<$reply as Reply>::Done> {
                call::<$reply>(Request::$variant(self $(, $arg.into())*), vec![$($fd.as_fd()),*])
            }
        }
    };
    (@request $variant:ident () ) => { Request::$variant };
    (@request $variant:ident ($($arg:ident),*) ) => { Request::$variant($($arg),*) };
    (@request $variant:ident ($($arg:ident),*) { $($field:ident),* }) => { Request::$variant { $($field),* } };
}

pub(super) use operations;

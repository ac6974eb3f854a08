// SPDX-License-Identifier: BSD-2-Clause
//! Files that take the place of others: where these are mapped, and under the numbers of their descriptors. Pointers
//! into the mappings, and the numbers, stay valid.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, fstat, major, minor};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};

use crate::memfd;

/// A file, by device and inode: the same as long as it is open or mapped somewhere.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    /// Returns the identity of an open file.
    ///
    /// # Errors
    /// The errors of `fstat`.
    pub fn of(fd: impl AsFd) -> io::Result<FileId> {
        let stat = fstat(fd)?;
        Ok(FileId { device: stat.st_dev, inode: stat.st_ino })
    }

    /// Returns the inode.
    pub fn inode(&self) -> u64 {
        self.inode
    }
}

/// A part of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FilePart {
    /// The file.
    pub file: FileId,
    /// Its first byte, a multiple of the page size.
    pub from: u64,
    /// Bytes, a multiple of the page size.
    pub bytes: u64,
}

/// A range of addresses at which a part of a file is mapped.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    addresses: Range<usize>,
    /// Bytes from the start of the part.
    at: u64,
    is_writable: bool,
    is_shared: bool,
}

/// Maps the sealed memory file `new`, from byte `from` on, wherever this process has `part` mapped. Returns how many
/// mappings were replaced. Threads that access the memory meanwhile find the old or the new bytes.
///
/// # Errors
/// `InvalidData` if `new` is not sealed or is shorter; those of `mmap`, after which some mappings may be replaced, and
/// others not; `/proc` is not mounted.
pub fn replace_memory(part: FilePart, new: BorrowedFd<'_>, from: u64) -> io::Result<usize> {
    memfd::check_sealed(new, from.saturating_add(part.bytes))?;
    let places = places(part)?;
    places.iter().try_for_each(|place| map_over(place, Some((new, from + place.at))))?;
    Ok(places.len())
}

/// Where the rings of a socket were mapped: zeroed memory of this process alone is mapped there.
#[derive(Debug, Default)]
pub struct RingPlaces(Vec<Place>);

impl RingPlaces {
    /// Unmaps the rings of a socket, which the kernel keeps while they are mapped.
    ///
    /// # Errors
    /// `/proc` is not mounted; those of `mmap`.
    pub fn leave(socket: impl AsFd) -> io::Result<RingPlaces> {
        let places = places(FilePart { file: FileId::of(socket)?, from: 0, bytes: u64::MAX })?;
        places.iter().try_for_each(|place| map_over(place, None))?;
        Ok(RingPlaces(places))
    }

    /// Maps the rings of another socket there.
    ///
    /// # Errors
    /// `InvalidInput` if `new` is no socket; those of `mmap`, also if its rings are smaller.
    pub fn take(&self, new: BorrowedFd<'_>) -> io::Result<()> {
        if FileType::from_raw_mode(fstat(new)?.st_mode) != FileType::Socket {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.0.iter().try_for_each(|place| map_over(place, Some((new, place.at))))
    }
}

/// Returns where this process has the part mapped.
fn places(part: FilePart) -> io::Result<Vec<Place>> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    Ok(maps.lines().filter_map(|line| place_of(line, part)).collect())
}

/// Maps a file over a place; `None`: memory of this process.
fn map_over(place: &Place, new: Option<(BorrowedFd<'_>, u64)>) -> io::Result<()> {
    let protection = if place.is_writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
    let kind = if place.is_shared && new.is_some() { MapFlags::SHARED } else { MapFlags::PRIVATE };
    let (start, bytes) = (std::ptr::without_provenance_mut(place.addresses.start), place.addresses.len());
    // SAFETY: K3: the range is part of a mapping of a memory file or a socket's rings that is replaced as a whole, by
    // bytes that are as readable and writable, and as many: `replace_memory` has checked the seals, and the kernel the
    // rings' size. All users of such memory expect any bytes there at any time.
    unsafe {
        match new {
            Some((fd, at)) => mmap(start, bytes, protection, kind | MapFlags::FIXED, fd, at)?,
            None => mmap_anonymous(start, bytes, protection, kind | MapFlags::FIXED)?,
        }
    };
    Ok(())
}

/// Returns the place in a line of `/proc/self/maps`; `None` if it maps nothing of the part.
fn place_of(line: &str, part: FilePart) -> Option<Place> {
    let mut words = line.split_ascii_whitespace();
    let (addresses, permissions) = (words.next()?, words.next()?.as_bytes());
    let [offset, device, inode] = [words.next()?, words.next()?, words.next()?];
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let (device_major, device_minor) = device.split_once(':')?;
    let is_file = inode.parse() == Ok(part.file.inode)
        && hex(device_major)? == u64::from(major(part.file.device))
        && hex(device_minor)? == u64::from(minor(part.file.device));
    if !is_file {
        return None;
    }
    let (start, end) = addresses.split_once('-')?;
    let (start, end, offset) = (hex(start)?, hex(end)?, hex(offset)?);
    let from = offset.max(part.from);
    let to = offset.checked_add(end.checked_sub(start)?)?.min(part.from.saturating_add(part.bytes));
    if from >= to {
        return None;
    }
    let address = |at: u64| usize::try_from(start + (at - offset)).ok();
    Some(Place {
        addresses: address(from)?..address(to)?,
        at: from - part.from,
        is_writable: permissions.get(1) == Some(&b'w'),
        is_shared: permissions.get(3) == Some(&b's'),
    })
}

/// Gives the number of `old`, a socket or an eventfd, to the file of `new`; it stays, or becomes, close-on-exec. A
/// program that has closed all descriptors, and these with them, may have other files under their numbers: such a file
/// stays open, unless it is such a one, too.
///
/// # Errors
/// `EBADF`: the number has no file, or one of another kind; `/proc` is not mounted; the errors of `dup3`.
pub fn replace_fd(old: BorrowedFd<'_>, new: OwnedFd) -> io::Result<()> {
    let name = std::fs::read_link(format!("/proc/self/fd/{}", old.as_raw_fd())).map_err(|_| Errno::BADF)?;
    if !["socket:", "anon_inode:"].iter().any(|kind| name.as_os_str().as_encoded_bytes().starts_with(kind.as_bytes())) {
        return Err(Errno::BADF.into());
    }
    // SAFETY: K2, K7: the number stays open, for another file; `new` is closed by its owner.
    match unsafe { libc::dup3(new.as_raw_fd(), old.as_raw_fd(), libc::O_CLOEXEC) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use super::*;
    use crate::Mapping;

    const PAGE: u64 = 4096;

    fn word(map: &Mapping, at: usize) -> u32 {
        assert!(at.is_multiple_of(4) && at + 4 <= map.len());
        // SAFETY: K3: in range (just checked), aligned, mapped while `map` is borrowed, and atomic.
        unsafe { AtomicU32::from_ptr(map.as_ptr().add(at).cast()) }.load(Relaxed)
    }

    fn file(pages: u64, byte: u8) -> OwnedFd {
        let fd = memfd::create_sealed("test-in-place", pages * PAGE).unwrap();
        rustix::io::pwrite(&fd, &vec![byte; (pages * PAGE) as usize], 0).unwrap();
        fd
    }

    #[test]
    fn all_mappings_of_a_part_are_replaced_where_they_are() {
        let (old, new) = (file(4, 1), file(6, 2));
        let (whole, tail) = (Mapping::part(old.as_fd(), 0, 4 * PAGE as usize), Mapping::part(old.as_fd(), 2 * PAGE, 8));
        let (whole, tail, of_new) = (whole.unwrap(), tail.unwrap(), Mapping::new(new.as_fd(), 8).unwrap());
        // Its second and third page, by the fifth and sixth of the other file.
        let part = FilePart { file: FileId::of(&old).unwrap(), from: PAGE, bytes: 2 * PAGE };
        assert_eq!(replace_memory(part, new.as_fd(), 4 * PAGE).unwrap(), 2);
        rustix::io::pwrite(&new, &[3; 4], 5 * PAGE).unwrap();
        let at = |page: usize| word(&whole, page * PAGE as usize);
        assert_eq!([at(0), at(1), at(2), at(3)], [0x0101_0101, 0x0202_0202, 0x0303_0303, 0x0101_0101]);
        assert_eq!((word(&tail, 0), word(&of_new, 0)), (0x0303_0303, 0x0202_0202));
        let left = RingPlaces::leave(&old).unwrap();
        assert_eq!((left.0.len(), [at(0), at(1), at(3)]), (2, [0, 0x0202_0202, 0]));
        assert_eq!(left.take(new.as_fd()).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn memory_that_could_shrink_or_is_too_short_takes_no_place() {
        let old = file(2, 1);
        let map = Mapping::new(old.as_fd(), 2 * PAGE as usize).unwrap();
        let part = FilePart { file: FileId::of(&old).unwrap(), from: 0, bytes: 2 * PAGE };
        let refused = |new: BorrowedFd<'_>, from| replace_memory(part, new, from).unwrap_err().kind();
        assert_eq!(refused(file(2, 2).as_fd(), PAGE), io::ErrorKind::InvalidData);
        let unsealed = std::fs::File::open("/dev/zero").unwrap();
        assert_eq!(refused(unsealed.as_fd(), 0), io::ErrorKind::InvalidData);
        assert_eq!(word(&map, 0), 0x0101_0101);
    }

    #[test]
    fn a_line_of_another_file_or_part_is_no_place() {
        let part = FilePart { file: FileId { device: rustix::fs::makedev(0, 8), inode: 7 }, from: 4096, bytes: 4096 };
        let line = |rest: &str| place_of(&format!("10000-13000 {rest}"), part);
        let place = Place { addresses: 0x11000..0x12000, at: 0, is_writable: true, is_shared: true };
        assert_eq!(line("rw-s 00000000 00:08 7    socket:[7]"), Some(place));
        for other in ["rw-s 00000000 00:08 8 x", "rw-s 00000000 00:09 7 x", "rw-s 00002000 00:08 7 x", "rw-s", ""] {
            assert_eq!(line(other), None, "{other}");
        }
    }

    #[test]
    fn a_number_gets_another_file() {
        let (old, _end) = std::os::unix::net::UnixStream::pair().unwrap();
        let new = file(1, 2);
        let id = FileId::of(&new).unwrap();
        replace_fd(old.as_fd(), new).unwrap();
        assert_eq!(FileId::of(&old).unwrap(), id);
    }

    #[test]
    fn a_number_that_the_program_uses_for_a_file_of_its_own_keeps_it() {
        let (own, new) = (file(1, 1), file(1, 2));
        let id = FileId::of(&own).unwrap();
        assert_eq!(replace_fd(own.as_fd(), new).unwrap_err().raw_os_error(), Some(libc::EBADF));
        assert_eq!(FileId::of(&own).unwrap(), id);
    }
}

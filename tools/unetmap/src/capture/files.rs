// SPDX-License-Identifier: BSD-2-Clause
//! The output files of a capture: one file, or a sequence that continues with the next file at a limit of size or age.
//!
//! Packets are collected in a buffer of whole records, a chunk, which is written after its index
//! (`crates/capture/src/index`), compressed or as it is. If it cannot be written, as on a full disk, the file is cut
//! after its last record, or before the last compressed chunk, so that it can be read.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use unetmap_capture::index::{Builder, CHUNK};
use unetmap_capture::write::{self, CaptureInfo, Counters, Format, Volume, write_some};
use unetmap_sys::place::{Identity, Place};

use super::packer::Packer;

/// How the files are written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Style {
    pub(crate) format: Format,
    /// Chunks have an index. For pcapng only.
    pub(crate) has_index: bool,
    /// Chunks are compressed at this level.
    pub(crate) level: Option<i32>,
}

/// Limits of a file, and the number of files to keep.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limits {
    /// Most bytes of a file.
    pub(crate) bytes: Option<u64>,
    /// Longest time from the first packet of a file.
    pub(crate) time: Option<Duration>,
    /// Number of files to keep; older files are removed.
    pub(crate) files: Option<usize>,
}

impl Limits {
    /// Returns true if the capture may consist of several files, which then have numbers.
    fn is_sequence(self) -> bool {
        self.bytes.is_some() || self.time.is_some()
    }
}

/// The current file and the earlier ones.
pub(crate) struct Files {
    path: PathBuf,
    style: Style,
    info: CaptureInfo,
    limits: Limits,
    out: File,
    /// Whole records that are not in the file yet.
    buffer: Vec<u8>,
    /// The index of the buffer.
    index: Builder,
    packer: Option<Packer>,
    /// Bytes of whole records in the file, with indexes.
    flushed: u64,
    /// Packets that could not be written.
    unwritten: Volume,
    /// The files with numbers, in one folder that is held open: only those are removed.
    written: VecDeque<(Place, Identity)>,
    number: u32,
    /// Time of the first packet of the current file.
    file_begin: Option<Duration>,
    /// Time of the first packet of the first file.
    capture_begin: Option<Duration>,
}

impl Files {
    /// Creates the first file; `-` is standard output.
    pub(crate) fn create(path: &Path, style: Style, info: CaptureInfo, limits: Limits) -> Result<Files, String> {
        let failed = |e: io::Error| format!("-w {}: {e}", path.display());
        let mut files = Files {
            path: path.to_owned(),
            style,
            info,
            limits,
            // Replaced below.
            // Raw: a capture.
            out: io::stdout().as_fd().try_clone_to_owned().map_err(failed)?.into(),
            buffer: Vec::with_capacity(CHUNK),
            index: Builder::default(),
            packer: style.level.map(Packer::new).transpose().map_err(failed)?,
            flushed: 0,
            unwritten: Volume::default(),
            written: VecDeque::new(),
            number: 0,
            file_begin: None,
            capture_begin: None,
        };
        files.create_next().map_err(|e| files.failed(&e))?;
        Ok(files)
    }

    /// Returns the name of the current file: FILE, or FILE_00001 with the extension after the number.
    fn name(&self) -> PathBuf {
        if !self.limits.is_sequence() {
            return self.path.clone();
        }
        numbered(&self.path, &format!("_{:05}", self.number))
    }

    fn failed(&self, error: &io::Error) -> String {
        format!("-w {}: {error}", self.name().display())
    }

    fn create_next(&mut self) -> io::Result<()> {
        self.number += 1;
        if self.path != Path::new("-") {
            let name = self.name();
            let place = match self.written.back() {
                Some((last, _)) => last.beside(name.file_name().unwrap_or_default()),
                None => Place::of_target(&name)?,
            };
            self.out = place.create(0o666)?;
            self.written.push_back((place, Identity::of(&self.out)?));
        }
        if let Some(limit) = self.limits.files {
            while self.written.len() > limit {
                // Fails if the user has removed the file already.
                let _ = self.written.pop_front().map(|(place, identity)| place.remove(identity));
            }
        }
        let mut header = Vec::new();
        write::begin(&mut header, self.style.format, &self.info)?;
        if let Some(packer) = &mut self.packer {
            header = packer.frame(&header)?;
        }
        self.out.write_all(&header)?;
        self.flushed = header.len() as u64;
        self.file_begin = None;
        Ok(())
    }

    /// Writes the buffer after its index. If not all of it can be written, writes what has room without the index, and
    /// cuts the file after its last whole record.
    fn write_buffer(&mut self) -> io::Result<()> {
        let packed = self.packer.as_mut().map_or(Ok(()), |packer| packer.pack(&self.buffer));
        let records = self.packer.as_ref().map_or(&self.buffer, |packer| &packer.packed);
        let mut index: &[u8] = &[];
        if self.style.has_index && !self.index.is_empty() {
            index = match &self.packer {
                Some(packer) => self.index.frame(self.buffer.len(), &packer.units, records.len()),
                None => self.index.block(self.buffer.len()),
            };
        }
        let (mut done, mut written) = (0, packed);
        for part in [index, records] {
            if written.is_ok() {
                let (bytes, result) = write_some(&mut self.out, part);
                (done, written) = (done + bytes, result);
            }
        }
        if written.is_ok() {
            self.flushed += done as u64;
            self.buffer.clear();
            return Ok(());
        }
        // The index may be longer than the room that is left.
        if !index.is_empty() && self.packer.is_none() && cut(&mut self.out, self.flushed).is_ok() {
            index = &[];
            done = write_some(&mut self.out, records).0;
        }
        // A compressed chunk ends nowhere before its end.
        let of_records = if self.packer.is_some() { 0 } else { done.saturating_sub(index.len()) };
        let (whole, left) = write::whole_records(self.style.format, &self.buffer, of_records);
        if whole > 0 {
            self.flushed += (index.len() + whole) as u64;
        }
        self.unwritten.add(left);
        self.buffer.clear();
        // Standard output may be a pipe, or a file with other contents.
        if self.path != Path::new("-") {
            // Fails for a file that has no size, such as a device.
            let _ = cut(&mut self.out, self.flushed);
        }
        written
    }

    /// Returns the most bytes that the file has with the buffer and a record of `more` bytes.
    fn size_with(&self, more: u64) -> u64 {
        let index = if self.style.has_index { self.index.size() } else { 0 };
        let buffer = self.buffer.len() as u64 + more + write::end_size(self.style.format);
        self.flushed + index + buffer + self.packer.as_ref().map_or(0, |_| Packer::most_overhead(buffer))
    }

    /// Writes a packet, to a new file if the current one is full.
    #[inline]
    pub(crate) fn packet(
        &mut self,
        time: Duration,
        bytes: &[u8],
        len: u32,
        counters: impl FnOnce() -> Counters,
    ) -> Result<(), String> {
        let record = write::packet_size(self.style.format, bytes);
        let age = self.file_begin.map(|begin| time.saturating_sub(begin));
        let full = self.limits.bytes.is_some_and(|limit| self.size_with(record) > limit)
            || self.limits.time.is_some_and(|limit| age.is_some_and(|age| age >= limit));
        // A packet that exceeds the size limit by itself goes into a file of its own.
        if full && self.file_begin.is_some() {
            self.end(time, counters()).and_then(|()| self.create_next()).map_err(|e| self.failed(&e))?;
        }
        self.file_begin.get_or_insert(time);
        self.capture_begin.get_or_insert(time);
        if self.buffer.len() + record as usize > CHUNK {
            self.flush()?;
        }
        if self.style.has_index {
            self.index.add(self.buffer.len(), time, bytes);
        }
        write::packet(&mut self.buffer, self.style.format, time, bytes, len).map(drop).map_err(|e| self.failed(&e))
    }

    fn end(&mut self, now: Duration, counters: Counters) -> io::Result<()> {
        self.write_buffer()?;
        write::end(&mut self.buffer, self.style.format, self.capture_begin.unwrap_or(now), now, counters)?;
        self.write_buffer()
    }

    /// Writes the buffer to the file, so that readers see all packets so far.
    pub(crate) fn flush(&mut self) -> Result<(), String> {
        self.write_buffer().map_err(|e| self.failed(&e))
    }

    /// Counts a packet that cannot be written after a failure.
    pub(crate) fn lose(&mut self, len: u32) {
        self.unwritten.add(Volume { packets: 1, bytes: len.into() });
    }

    /// Returns the packets that the files lack because they could not be written.
    pub(crate) fn unwritten(&self) -> Volume {
        self.unwritten
    }

    /// Returns the number of files.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Writes the end of the last file.
    pub(crate) fn finish(&mut self, now: Duration, counters: Counters) -> Result<(), String> {
        self.end(now, counters).map_err(|e| self.failed(&e))
    }
}

/// Returns the path with `mark` before its extension, or before those of a compressed file, such as `.pcapng.zst`.
pub(crate) fn numbered(path: &Path, mark: &str) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let base = name.strip_suffix(".zst").unwrap_or(&name);
    let at = base.rfind('.').filter(|&at| at > 0).unwrap_or(base.len());
    path.with_file_name(format!("{}{mark}{}", &name[..at], &name[at..]))
}

/// Has the file end after `len` bytes, where the next write begins.
fn cut(out: &mut File, len: u64) -> io::Result<()> {
    out.set_len(len).and_then(|()| out.seek(SeekFrom::End(0))).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_before_the_extension() {
        for (name, wanted) in
            [("a.pcapng", "a_2.pcapng"), ("a.b.pcapng.zst", "a.b_2.pcapng.zst"), ("/tmp/a", "/tmp/a_2"), (".a", ".a_2")]
        {
            assert_eq!(numbered(Path::new(name), "_2"), Path::new(wanted));
        }
    }
}

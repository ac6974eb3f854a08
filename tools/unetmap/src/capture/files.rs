// SPDX-License-Identifier: BSD-2-Clause
//! The output files of a capture: one file, or a sequence that continues with the next file at a limit of size or age.
//!
//! Packets are collected in a buffer of whole records. If it cannot be written, as on a full disk, the file is cut
//! after its last record, so that it can be read.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use unetmap_capture::write::{self, CaptureInfo, Counters, Format, Volume};
use unetmap_sys::place::{Identity, Place};

/// Bytes of records that are collected before they are written.
const BUFFER: usize = 1 << 20;

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
    format: Format,
    info: CaptureInfo,
    limits: Limits,
    out: File,
    /// Whole records that are not in the file yet.
    buffer: Vec<u8>,
    /// Bytes of whole records in the file.
    flushed: u64,
    /// Packets that could not be written.
    unwritten: Volume,
    /// The files with numbers, in one folder that is held open: only those are removed.
    written: VecDeque<(Place, Identity)>,
    number: u32,
    /// Bytes of the current file, and the time of its first packet.
    bytes: u64,
    file_begin: Option<Duration>,
    /// Time of the first packet of the first file.
    capture_begin: Option<Duration>,
}

impl Files {
    /// Creates the first file; `-` is standard output.
    pub(crate) fn create(path: &Path, format: Format, info: CaptureInfo, limits: Limits) -> Result<Files, String> {
        let failed = |e: io::Error| format!("-w {}: {e}", path.display());
        let mut files = Files {
            path: path.to_owned(),
            format,
            info,
            limits,
            // Replaced below.
            // Raw: a capture.
            out: io::stdout().as_fd().try_clone_to_owned().map_err(failed)?.into(),
            buffer: Vec::new(),
            flushed: 0,
            unwritten: Volume::default(),
            written: VecDeque::new(),
            number: 0,
            bytes: 0,
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
        let stem = self.path.file_stem().unwrap_or_default().to_string_lossy();
        let extension = self.path.extension().map(|e| format!(".{}", e.to_string_lossy())).unwrap_or_default();
        self.path.with_file_name(format!("{stem}_{:05}{extension}", self.number))
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
        self.bytes = write::begin(&mut header, self.format, &self.info)?;
        self.out.write_all(&header)?;
        self.flushed = self.bytes;
        self.file_begin = None;
        Ok(())
    }

    /// Writes the buffer. If not all of it can be written, cuts the file after its last whole record.
    fn write_buffer(&mut self) -> io::Result<()> {
        let mut done = 0;
        let error = loop {
            if done == self.buffer.len() {
                self.flushed += done as u64;
                self.buffer.clear();
                return Ok(());
            }
            match self.out.write(&self.buffer[done..]) {
                Ok(0) => break io::ErrorKind::WriteZero.into(),
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => break e,
            }
        };
        let (whole, left) = write::whole_records(self.format, &self.buffer, done);
        self.flushed += whole as u64;
        self.unwritten.add(left);
        self.buffer.clear();
        // Standard output may be a pipe, or a file with other contents.
        if self.path != Path::new("-") {
            // Fails for a file that has no size, such as a device.
            let _ = self.out.set_len(self.flushed).and_then(|()| self.out.seek(SeekFrom::End(0)));
        }
        Err(error)
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
        let size = self.bytes + write::packet_size(self.format, bytes) + write::end_size(self.format);
        let age = self.file_begin.map(|begin| time.saturating_sub(begin));
        let full = self.limits.bytes.is_some_and(|limit| size > limit)
            || self.limits.time.is_some_and(|limit| age.is_some_and(|age| age >= limit));
        // A packet that exceeds the size limit by itself goes into a file of its own.
        if full && self.file_begin.is_some() {
            self.end(time, counters()).and_then(|()| self.create_next()).map_err(|e| self.failed(&e))?;
        }
        self.file_begin.get_or_insert(time);
        self.capture_begin.get_or_insert(time);
        let written = write::packet(&mut self.buffer, self.format, time, bytes, len);
        self.bytes += written.map_err(|e| self.failed(&e))?;
        if self.buffer.len() >= BUFFER { self.flush() } else { Ok(()) }
    }

    fn end(&mut self, now: Duration, counters: Counters) -> io::Result<()> {
        self.write_buffer()?;
        write::end(&mut self.buffer, self.format, self.capture_begin.unwrap_or(now), now, counters)?;
        self.write_buffer()
    }

    /// Writes the buffer to the file, so that readers see all packets so far.
    pub(crate) fn flush(&mut self) -> Result<(), String> {
        self.write_buffer().map_err(|e| self.failed(&e))
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

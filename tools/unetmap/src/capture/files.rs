// SPDX-License-Identifier: BSD-2-Clause
//! The output files of a capture: one file, or a sequence that continues with the next file at a limit of size or age.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::format::{self, CaptureInfo, Counters, Format};

/// Bytes of the write buffer.
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
    out: Box<dyn Write>,
    written: VecDeque<PathBuf>,
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
        let mut files = Files {
            path: path.to_owned(),
            format,
            info,
            limits,
            out: Box::new(io::sink()),
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
        format!("-w {}: {error}", self.written.back().unwrap_or(&self.path).display())
    }

    fn create_next(&mut self) -> io::Result<()> {
        self.number += 1;
        let name = self.name();
        self.out = if self.path == Path::new("-") {
            Box::new(BufWriter::with_capacity(BUFFER, io::stdout()))
        } else {
            let file = File::create(&name);
            self.written.push_back(name);
            Box::new(BufWriter::with_capacity(BUFFER, file?))
        };
        if let Some(limit) = self.limits.files {
            while self.written.len() > limit {
                // Fails if the user has removed the file already.
                let _ = self.written.pop_front().map(fs::remove_file);
            }
        }
        self.bytes = format::begin(&mut self.out, self.format, &self.info)?;
        self.file_begin = None;
        Ok(())
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
        let size = self.bytes + format::packet_size(self.format, bytes) + format::end_size(self.format);
        let age = self.file_begin.map(|begin| time.saturating_sub(begin));
        let full = self.limits.bytes.is_some_and(|limit| size > limit)
            || self.limits.time.is_some_and(|limit| age.is_some_and(|age| age >= limit));
        // A packet that exceeds the size limit by itself goes into a file of its own.
        if full && self.file_begin.is_some() {
            self.end(time, counters()).and_then(|()| self.create_next()).map_err(|e| self.failed(&e))?;
        }
        self.file_begin.get_or_insert(time);
        self.capture_begin.get_or_insert(time);
        self.bytes += format::packet(&mut self.out, self.format, time, bytes, len).map_err(|e| self.failed(&e))?;
        Ok(())
    }

    fn end(&mut self, now: Duration, counters: Counters) -> io::Result<()> {
        format::end(&mut self.out, self.format, self.capture_begin.unwrap_or(now), now, counters)?;
        self.out.flush()
    }

    /// Writes the buffer to the file, so that readers see all packets so far.
    pub(crate) fn flush(&mut self) -> Result<(), String> {
        self.out.flush().map_err(|e| self.failed(&e))
    }

    /// Writes the end of the last file; returns the number of files.
    pub(crate) fn finish(mut self, now: Duration, counters: Counters) -> Result<u32, String> {
        self.end(now, counters).map_err(|e| self.failed(&e))?;
        Ok(self.number)
    }
}

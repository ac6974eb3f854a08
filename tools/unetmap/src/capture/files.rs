//! The files of a capture: one, or a ring of them, each ended and the next begun when it is large or old enough.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::format::{self, About, Counters, Format};

/// Bytes that are written at once.
const BUFFER: usize = 1 << 20;

/// When a file is full, and how many are kept.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limits {
    /// Bytes of a file.
    pub(crate) bytes: Option<u64>,
    /// From its first packet on.
    pub(crate) time: Option<Duration>,
    /// Files that are kept: of more the oldest are removed.
    pub(crate) files: Option<usize>,
}

impl Limits {
    fn several(self) -> bool {
        self.bytes.is_some() || self.time.is_some()
    }
}

/// The file that is being written, and those before it.
pub(crate) struct Files {
    path: PathBuf,
    format: Format,
    about: About,
    limits: Limits,
    out: Box<dyn Write>,
    written: VecDeque<PathBuf>,
    number: u32,
    /// Bytes of this file, and when its first packet came.
    bytes: u64,
    begun: Option<Duration>,
    /// When the first file's first packet came.
    first: Option<Duration>,
}

impl Files {
    /// Makes the first file; `-` is standard output.
    pub(crate) fn create(path: &Path, format: Format, about: About, limits: Limits) -> Result<Files, String> {
        let mut files = Files {
            path: path.to_owned(),
            format,
            about,
            limits,
            out: Box::new(io::sink()),
            written: VecDeque::new(),
            number: 0,
            bytes: 0,
            begun: None,
            first: None,
        };
        files.next().map_err(|e| files.failed(&e))?;
        Ok(files)
    }

    /// FILE, or FILE_00001 with its extension behind the number.
    fn name(&self) -> PathBuf {
        if !self.limits.several() {
            return self.path.clone();
        }
        let stem = self.path.file_stem().unwrap_or_default().to_string_lossy();
        let extension = self.path.extension().map(|e| format!(".{}", e.to_string_lossy())).unwrap_or_default();
        self.path.with_file_name(format!("{stem}_{:05}{extension}", self.number))
    }

    fn failed(&self, error: &io::Error) -> String {
        format!("-w {}: {error}", self.written.back().unwrap_or(&self.path).display())
    }

    fn next(&mut self) -> io::Result<()> {
        self.number += 1;
        let name = self.name();
        self.out = if self.path == Path::new("-") {
            Box::new(BufWriter::with_capacity(BUFFER, io::stdout()))
        } else {
            let file = File::create(&name);
            self.written.push_back(name);
            Box::new(BufWriter::with_capacity(BUFFER, file?))
        };
        if let Some(most) = self.limits.files {
            while self.written.len() > most {
                // Somebody else may have taken it away already.
                let _ = self.written.pop_front().map(fs::remove_file);
            }
        }
        self.bytes = format::begin(&mut self.out, self.format, &self.about)?;
        self.begun = None;
        Ok(())
    }

    /// Writes a packet, at the beginning of a new file if this one is full.
    #[inline]
    pub(crate) fn packet(
        &mut self,
        time: Duration,
        bytes: &[u8],
        len: u32,
        counters: impl FnOnce() -> Counters,
    ) -> Result<(), String> {
        let size = self.bytes + format::packet_size(self.format, bytes) + format::end_size(self.format);
        let full = self.limits.bytes.is_some_and(|most| size > most)
            || self.limits.time.is_some_and(|most| self.begun.is_some_and(|begun| time.saturating_sub(begun) >= most));
        // A packet that is larger than a file may be has a file of its own.
        if full && self.begun.is_some() {
            self.end(time, counters()).and_then(|()| self.next()).map_err(|e| self.failed(&e))?;
        }
        self.begun.get_or_insert(time);
        self.first.get_or_insert(time);
        self.bytes += format::packet(&mut self.out, self.format, time, bytes, len).map_err(|e| self.failed(&e))?;
        Ok(())
    }

    fn end(&mut self, now: Duration, counters: Counters) -> io::Result<()> {
        format::end(&mut self.out, self.format, self.first.unwrap_or(now), now, counters)?;
        self.out.flush()
    }

    /// Writes out what was held back: readers see all that came so far.
    pub(crate) fn flush(&mut self) -> Result<(), String> {
        self.out.flush().map_err(|e| self.failed(&e))
    }

    /// Writes the end of the last file; returns how many there were.
    pub(crate) fn finish(mut self, now: Duration, counters: Counters) -> Result<u32, String> {
        self.end(now, counters).map_err(|e| self.failed(&e))?;
        Ok(self.number)
    }
}

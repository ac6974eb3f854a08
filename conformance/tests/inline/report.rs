// SPDX-License-Identifier: BSD-2-Clause
//! The tables: of the terminal, of the document, and as JSON.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::All;
use crate::ledger::Frames;
use crate::place::WAYS;
use crate::repeated::Results;
use crate::scene::Row;

/// The lines of the document between which the tables stand.
const BEGIN: &str = "<!-- begin: tables of make test-inline -->\n";
const END: &str = "<!-- end: tables of make test-inline -->\n";

/// A row in one line, for the progress.
pub(crate) fn line(row: &Row) -> String {
    if let Some(why) = &row.skipped {
        return format!("skipped: {why}");
    }
    let [out, into] = row.closed_ms;
    let mut text = format!(
        "{:6} closed {out:.0}/{into:.0} ms, lost {}/{}, denied seen {}",
        row.meanwhile,
        row.lost[0],
        row.lost[1],
        denied(row),
    );
    for (n, what) in [(row.repeated, "repeated"), (row.late, "late"), (row.broken.len() as u64, "broken")] {
        if n > 0 {
            let _ = write!(text, ", {n} {what}");
        }
    }
    if let Some(frames) = &row.frames {
        let counted: Vec<String> = frames.counted.iter().map(|(counter, n)| format!("{counter} {n}")).collect();
        let _ = write!(text, ", frames lost {}, counted {} ({})", frames.lost, frames.sum(), counted.join(", "));
        if frames.bypassed > 0 {
            let _ = write!(text, ", bypassed {}", frames.bypassed);
        }
    }
    if !row.started.is_empty() {
        let _ = write!(text, ", started again: {}", row.started.join(", "));
    }
    if let Some(why) = &row.failure {
        let _ = write!(text, ", FAILED: {why}");
    }
    text
}

/// A table for each program, and one of what was repeated.
pub(crate) fn tables(all: &All) -> String {
    let mut text = String::new();
    for way in &WAYS {
        let rows: Vec<&Row> = all.rows.iter().filter(|row| row.way == way.name).collect();
        if rows.is_empty() {
            continue;
        }
        let _ = write!(
            text,
            "### {}\n\n| fault | wire meanwhile | closed for, ms | lost of sent | again, late | {} | broken TCP | started \
             again |\n|---|---|---|---|---|---|---|---|\n",
            way.about,
            if way.denies { "denied seen" } else { "frames: lost, counted, bypassed" }
        );
        rows.iter().for_each(|row| text += &table_row(row, way.denies));
        text.push('\n');
    }
    if !all.repeated.is_empty() {
        text += "### Many times\n\n| program | fault | times | closed for, ms: median, 99 %, longest | lost of sent | again, late | \
                 frames: lost, counted, bypassed | denied seen | dropped by the kernel | broken TCP |\n|---|---|---|---|---|---|---|---|---|---|\n";
        all.repeated.iter().for_each(|results| text += &repeated_row(results));
        text.push('\n');
    }
    text
}

fn repeated_row(results: &Results) -> String {
    let (row, [median, most, longest]) = (&results.row, results.closed_ms);
    let has_rules = WAYS.iter().any(|way| way.name == row.way && way.denies);
    format!(
        "| {} | {} | {} | {median:.0}, {most:.0}, {longest:.0} | {} | {} | {} | {} | {} |\n",
        row.way,
        fault(row),
        results.times,
        datagrams(row),
        frames(row),
        if has_rules { denied(row) } else { String::new() },
        row.kernel_dropped.map_or_else(String::new, |frames| frames.to_string()),
        row.broken.len(),
    )
}

/// The fault, and whether traffic goes on after it.
fn fault(row: &Row) -> String {
    format!("{}{}", row.fault, row.failure.as_ref().map_or("", |_| " (does not go on)"))
}

/// Two columns: datagrams lost of those sent, out and in; repeated and late ones.
fn datagrams(row: &Row) -> String {
    let ([out, into], [sent_out, sent_in]) = (row.lost, row.sent);
    format!("{out} of {sent_out}, {into} of {sent_in} | {}, {}", row.repeated, row.late)
}

/// Datagrams that the rules deny and that were seen, of those sent, out and in.
fn denied(row: &Row) -> String {
    let ([out, into], [sent_out, sent_in]) = (row.denied_seen, row.denied_sent);
    format!("{out} of {sent_out}, {into} of {sent_in}")
}

/// Frames lost, counted and bypassed.
fn frames(row: &Row) -> String {
    let of = |frames: &Frames| format!("{}, {}, {}", frames.lost, frames.sum(), frames.bypassed);
    row.frames.as_ref().map_or_else(|| "not compared".into(), of)
}

fn table_row(row: &Row, denies: bool) -> String {
    if let Some(why) = &row.skipped {
        return format!("| {} | not tried: {why} | | | | | | |\n", row.fault);
    }
    let [out, into] = row.closed_ms;
    let seen = if denies { denied(row) } else { frames(row) };
    format!(
        "| {} | {} | {out:.0}, {into:.0} | {} | {seen} | {} | {} |\n",
        fault(row),
        row.meanwhile,
        datagrams(row),
        row.broken.len(),
        row.started.join(", "),
    )
}

/// Writes the tables into a folder, as Markdown and JSON, and into a document, between its two lines.
pub(crate) fn write(all: &All, out: Option<&Path>, document: Option<&Path>) -> Result<(), String> {
    let told = |path: &Path, e: std::io::Error| format!("{}: {e}", path.display());
    let write = |path: &Path, text: &str| fs::write(path, text).map_err(|e| told(path, e));
    if let Some(out) = out {
        fs::create_dir_all(out).map_err(|e| told(out, e))?;
        write(&out.join("inline.md"), &tables(all))?;
        write(&out.join("inline.json"), &serde_json::to_string_pretty(all).map_err(|e| e.to_string())?)?;
    }
    if let Some(path) = document {
        let text = fs::read_to_string(path).map_err(|e| told(path, e))?;
        let parts = text.split_once(BEGIN).and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
        let (before, after) = parts.ok_or_else(|| format!("{} has no place for the tables", path.display()))?;
        write(path, &format!("{before}{BEGIN}\n{}{END}{after}", tables(all)))?;
    }
    Ok(())
}

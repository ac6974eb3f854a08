// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap top` on a terminal: a screen of its own, refreshed in place, with keys.

use std::io::{Stdout, Write as _, stdout};
use std::time::{Duration, Instant};

use crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers, poll, read};
use crossterm::style::{Attribute, Print, SetAttribute};
use crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode, size,
};
use crossterm::{cursor, execute, queue};
use tool_common::table::align;
use unetmap::abi::printable::word;

use super::{Counters, Rate, interfaces, rates, read_counters, rows};
use crate::ls::NO_DAEMON;

/// The order of the rings, in the sequence in which the key `s` goes through them.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Sort {
    Packets,
    Lost,
    Queued,
    Name,
}

impl Sort {
    const ALL: [Sort; 4] = [Sort::Packets, Sort::Lost, Sort::Queued, Sort::Name];

    fn name(self) -> &'static str {
        match self {
            Sort::Packets => "packets/s",
            Sort::Lost => "lost/s",
            Sort::Queued => "queued",
            Sort::Name => "port",
        }
    }

    fn next(self) -> Sort {
        let at = Sort::ALL.iter().position(|sort| *sort == self).unwrap_or(0);
        Sort::ALL[(at + 1) % Sort::ALL.len()]
    }
}

/// The user's choices.
struct View {
    sort: Sort,
    /// Rings whose port's name contains it are shown.
    filter: String,
    /// Keys go into the filter.
    is_typing: bool,
    has_help: bool,
    is_paused: bool,
    /// Lines about interfaces, below those of the rings.
    interfaces: Vec<String>,
}

const HELP: [&str; 12] = [
    "s      sort by the next column: packets/s, lost/s, queued, port",
    "/      show ports whose name contains what is typed; Enter ends it, Esc all",
    "space  stop and go on",
    "?      this help",
    "q      quit",
    "",
    "packets/s, Mbit/s, batch, lost/s: means since the last refresh; queued: slots.",
    "Mbit/s: of ports whose bytes are counted: of switches, mediated, received by",
    "pipes.",
    "tx: sent by the port's program; rx: received by it. Each packet is in both of",
    "the rings it crosses.",
    "lost: dropped for lack of room, or sent to no port.",
];

impl View {
    fn new() -> View {
        let (sort, filter, interfaces) = (Sort::Packets, String::new(), Vec::new());
        View { sort, filter, is_typing: false, has_help: false, is_paused: false, interfaces }
    }

    /// Acts on a key; returns false if it ends the program.
    fn key(&mut self, key: KeyEvent) -> bool {
        let is_control_c = key.modifiers.contains(KeyModifiers::CONTROL) && matches!(key.code, KeyCode::Char('c'));
        match key.code {
            _ if is_control_c => return false,
            KeyCode::Esc => {
                self.filter.clear();
                (self.is_typing, self.has_help) = (false, false);
            }
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Backspace if self.is_typing => drop(self.filter.pop()),
            KeyCode::Char(c) if self.is_typing => self.filter.push(c),
            KeyCode::Char('q') => return false,
            KeyCode::Char('s') => self.sort = self.sort.next(),
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Char('?') => self.has_help = !self.has_help,
            KeyCode::Char(' ') => self.is_paused = !self.is_paused,
            _ => {}
        }
        true
    }

    /// The lines of a screen of `width` by `height` characters, of which the third is the table's titles.
    fn lines(&self, state: &Result<Vec<Rate>, String>, (width, height): (usize, usize)) -> Vec<String> {
        let mut lines = match state {
            Err(why) => vec![format!("unetmap top: {why}"), String::new()],
            Ok(rates) => self.heading(rates),
        };
        if self.has_help {
            lines.push(String::new());
            lines.extend(HELP.map(String::from));
        } else if let Ok(all) = state {
            let mut shown: Vec<&Rate> = all.iter().filter(|rate| rate.key.1.contains(&self.filter)).collect();
            shown.sort_by(|a, b| match self.sort {
                Sort::Packets => b.packets.total_cmp(&a.packets),
                Sort::Lost => b.lost.total_cmp(&a.lost),
                Sort::Queued => b.ring.queued.cmp(&a.ring.queued),
                Sort::Name => a.key.cmp(&b.key),
            });
            // Two lines above, one of titles, one below.
            let below = self.interfaces.len().min(height / 2);
            let room = height.saturating_sub(4 + below);
            let hidden = shown.len().saturating_sub(room);
            shown.truncate(room);
            lines.extend(align(&rows(&shown), 2).lines().map(String::from));
            lines.extend_from_slice(&self.interfaces[..below]);
            lines.resize(height.saturating_sub(1), String::new());
            if hidden > 0 {
                lines.push(format!("{hidden} more rings"));
            }
        }
        lines.truncate(height);
        lines.into_iter().map(|line| word(&line).chars().take(width).collect()).collect()
    }

    fn heading(&self, rates: &[Rate]) -> Vec<String> {
        let sum = |of: fn(&Rate) -> f64, dir: &str| rates.iter().filter(|rate| rate.key.2 == dir).map(of).sum::<f64>();
        let mut ports: Vec<&str> = rates.iter().map(|rate| &*rate.key.1).collect();
        ports.dedup();
        let lost = sum(|rate| rate.lost, "tx") + sum(|rate| rate.lost, "rx");
        let total = format!(
            "unetmap top: {} port{}, {} rings; sent {:.0}/s, received {:.0}/s, lost {lost:.0}/s",
            ports.len(),
            if ports.len() == 1 { "" } else { "s" },
            rates.len(),
            sum(|rate| rate.packets, "tx"),
            sum(|rate| rate.packets, "rx"),
        );
        let filter = match (self.filter.is_empty(), self.is_typing) {
            (true, false) => String::new(),
            (_, typing) => format!("; ports with {}{}", self.filter, if typing { "_" } else { "" }),
        };
        let paused = if self.is_paused { "; stopped" } else { "" };
        vec![total, format!("by {}{filter}{paused}   s sort  / filter  ? help  q quit", self.sort.name())]
    }
}

/// The terminal in the mode of the screen; dropping it restores the terminal.
struct Screen(Stdout);

impl Screen {
    fn open() -> std::io::Result<Screen> {
        enable_raw_mode()?;
        // Raw: `View::lines` has escaped what is shown.
        let mut screen = Screen(stdout());
        execute!(screen.0, EnterAlternateScreen, cursor::Hide)?;
        Ok(screen)
    }

    fn show(&mut self, lines: &[String]) -> std::io::Result<()> {
        for (at, line) in lines.iter().enumerate() {
            queue!(self.0, cursor::MoveTo(0, at as u16))?;
            let is_title = at == 2;
            if is_title {
                queue!(self.0, SetAttribute(Attribute::Reverse))?;
            }
            queue!(self.0, Print(line))?;
            if is_title {
                queue!(self.0, SetAttribute(Attribute::Reset))?;
            }
            queue!(self.0, Clear(ClearType::UntilNewLine))?;
        }
        queue!(self.0, Clear(ClearType::FromCursorDown))?;
        self.0.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = execute!(self.0, cursor::Show, LeaveAlternateScreen);
        let _ = disable_raw_mode();
    }
}

/// Shows the screen until a key ends it, or `count` refreshes were shown (0: unlimited). Without a daemon it waits for
/// one.
pub(super) fn run(interval: Duration, count: u64) -> Result<(), String> {
    let failed = |e: std::io::Error| format!("top: the terminal: {e}");
    let mut screen = Screen::open().map_err(failed)?;
    let mut view = View::new();
    let mut last: Option<(Instant, Counters)> = None;
    let mut state = Err("waiting for the first counters".into());
    let (mut due, mut refreshes) = (Instant::now(), 0);
    loop {
        if Instant::now() >= due {
            due = Instant::now() + interval;
            if !view.is_paused {
                view.interfaces.clear();
                state = match read_counters() {
                    Err(why) => {
                        last = None;
                        Err(why)
                    }
                    Ok(None) => {
                        last = None;
                        Err(NO_DAEMON.into())
                    }
                    Ok(Some(counters)) if counters.rings.is_empty() && counters.interfaces.is_empty() => {
                        last = None;
                        Err("no port is open".into())
                    }
                    Ok(Some(counters)) => {
                        let now = Instant::now();
                        let below = interfaces::text(&counters.interfaces);
                        view.interfaces.extend(below.lines().map(String::from));
                        // The empty line stands above.
                        view.interfaces.rotate_right(usize::from(!below.is_empty()));
                        let (since, before) = last.as_ref().map_or((now, &counters), |(at, last)| (*at, last));
                        let rates = rates(&before.rings, &counters.rings, now - since);
                        last = Some((now, counters));
                        Ok(rates)
                    }
                };
            }
            refreshes += 1;
        }
        let (width, height) = size().map_err(failed)?;
        screen.show(&view.lines(&state, (width.into(), height.into()))).map_err(failed)?;
        // The first refresh has no rates.
        if count > 0 && refreshes > count {
            return Ok(());
        }
        if poll(due.saturating_duration_since(Instant::now())).map_err(failed)?
            && let Event::Key(key) = read().map_err(failed)?
            && key.kind == KeyEventKind::Press
            && !view.key(key)
        {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::RingCounters;

    fn rate(port: &str, dir: &str, packets: f64) -> Rate {
        let (kind, name) = ("pipe".into(), format!("{dir} 0"));
        let ring = RingCounters {
            label: None,
            kind,
            serial: None,
            name,
            queued: packets as u64,
            crossed: 0,
            batches: 0,
            bytes: None,
            lost: 0,
        };
        Rate { key: (1, port.into(), dir.into(), 0), ring, packets, bits: None, batch: 1.0, lost: 1000.0 - packets }
    }

    fn press(view: &mut View, keys: &str) -> bool {
        keys.chars().all(|c| {
            let code = match c {
                '\n' => KeyCode::Enter,
                '\x1b' => KeyCode::Esc,
                c => KeyCode::Char(c),
            };
            view.key(KeyEvent::new(code, KeyModifiers::NONE))
        })
    }

    #[test]
    fn the_busiest_rings_and_the_heading_fit_any_screen() {
        let rates = Ok((0..100).map(|n| rate(&format!("p{n}{{1"), "tx", f64::from(n))).collect::<Vec<_>>());
        for size in [(80, 24), (200, 60), (20, 5), (1, 1), (0, 0)] {
            let lines = View::new().lines(&rates, size);
            assert!(lines.len() <= size.1 && lines.iter().all(|line| line.chars().count() <= size.0), "{size:?}");
        }
        let lines = View::new().lines(&rates, (80, 24));
        assert_eq!(lines.len(), 24);
        assert!(lines[0].starts_with("unetmap top: 100 ports, 100 rings; sent 4950/s"), "{}", lines[0]);
        assert!(lines[2].starts_with("port") && lines[3].starts_with("p99{1"), "{lines:#?}");
        assert_eq!(lines[23], "80 more rings");
        let interfaces: Vec<String> = ["", "interface", "eth1"].map(String::from).into();
        for size in [(80, 24), (20, 5), (1, 1), (0, 0)] {
            let lines = View { interfaces: interfaces.clone(), ..View::new() }.lines(&rates, size);
            assert!(lines.len() <= size.1, "{size:?}");
        }
        let lines = View { interfaces, ..View::new() }.lines(&rates, (80, 24));
        assert_eq!([&*lines[22], &*lines[23]], ["eth1", "83 more rings"]);
    }

    #[test]
    fn keys_sort_filter_help_stop_and_quit() {
        let rates = Ok(vec![rate("b{1", "tx", 5.0), rate("a{1", "tx", 9.0), rate("c\x1b[2J", "rx", 1.0)]);
        let first = |view: &View| view.lines(&rates, (80, 24))[3].split(' ').next().unwrap_or("").to_owned();
        let mut view = View::new();
        assert_eq!(first(&view), "a{1");
        assert!(press(&mut view, "s"));
        assert_eq!(first(&view), "c\\u001b[2J", "by loss; the name's control characters escaped");
        assert!(press(&mut view, "ss") && view.sort == Sort::Name);
        assert!(press(&mut view, "/bq"));
        assert!(view.lines(&rates, (80, 24))[1].contains("ports with bq_"));
        assert!(press(&mut view, "\x1b/b\n"));
        assert_eq!(first(&view), "b{1");
        assert!(press(&mut view, "\x1b?"));
        assert!(HELP.iter().all(|line| line.len() <= 80), "a line fits the screen");
        assert!(view.lines(&rates, (80, 24)).iter().any(|line| line.starts_with("q      quit")));
        assert!(press(&mut view, "? "));
        assert!(view.lines(&rates, (80, 24))[1].contains("stopped"));
        assert!(!press(&mut view, "q"));
        let lines = view.lines(&Err("no port is open".into()), (80, 24));
        assert_eq!(lines[0], "unetmap top: no port is open");
    }
}

//! A trace as a picture: a lane for each rank, time downwards, arrows for verbs on the memory of other ranks.

use super::{Doing, Line, Trace};
use crate::model::{Action, Step, Verb};
use crate::{Mode, Rank};
use std::fmt::Write;

const LANE: usize = 320;
const LEFT: usize = 46;
const TOP: usize = 84;
const ROW: usize = 58;
/// Height of a line of text.
const LINE: usize = 18;
/// Width of a letter, at most.
const LETTER: usize = 7;

const STYLE: &str =
    "text{font:12px sans-serif;fill:#222}.head{font-weight:bold;font-size:14px}.small{font-size:11px;fill:#555}
.then{font-size:11px;fill:#940}
.bad{fill:#c00;font-weight:bold}.call{font-weight:bold;fill:#124}";

impl Trace {
    /// The trace as an SVG picture, with the violation as its title. Each rank has a lane: thin grey between calls, blue
    /// within a call, dashed red while the rank waits; on green while it holds a lock (dark: exclusively). An arrow
    /// goes from the rank that executes a verb to the rank whose memory it changes; it is orange if it wakes a rank,
    /// dashed if the verb only reads or fails. A verb that arrives later has a slanted arrow. The row of the last step is
    /// red. Below a lane stands what its rank waits for at the end, and which step left that value.
    pub fn svg(&self) -> String {
        let width = LEFT + self.ranks.max(2) * LANE;
        let what = wrapped(&self.what, (width - LEFT) / LETTER);
        let title = (what.len() - 1) * LINE;
        let waiting = self.waiting.iter().map(|(rank, word)| (*rank, wrapped(word, (LANE - 20) / LETTER)));
        let waiting: Vec<_> = waiting.collect();
        let end = y(self.lines.len()) - ROW / 2 + LINE;
        let height = title + end + LINE * (waiting.iter().map(|(_, lines)| lines.len() + 1).max().unwrap_or(0) + 2);
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\">\n\
             <style>{STYLE}</style>\n<defs>"
        );
        for (name, colour) in [("blue", BLUE), ("grey", GREY), ("orange", ORANGE), ("red", RED)] {
            _ = write!(
                out,
                "<marker id=\"{name}\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"8\" markerHeight=\"8\" \
                 orient=\"auto\"><path d=\"M0 0L8 4L0 8z\" fill=\"{colour}\"/></marker>"
            );
        }
        out += "</defs>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n";
        for (nth, line) in what.iter().enumerate() {
            text(&mut out, LEFT / 2, LINE + nth * LINE, "bad", line);
        }
        _ = writeln!(out, "<g transform=\"translate(0 {title})\">");
        for nth in 0..self.lines.len() {
            let (colour, height) = if nth + 1 == self.lines.len() { ("#fdd", ROW) } else { ("#eee", 1) };
            let (top, width) = (y(nth) - height / 2, width - LEFT / 2);
            _ = writeln!(
                out,
                "<rect x=\"{}\" y=\"{top}\" width=\"{width}\" height=\"{height}\" fill=\"{colour}\"/>",
                LEFT / 2
            );
        }
        self.lanes(&mut out);
        for (nth, line) in self.lines.iter().enumerate() {
            self.arrow(&mut out, nth, line);
        }
        if let Some(first) = self.cycle {
            let (top, middle) = (y(first) - ROW / 2 - 4, width - 8);
            draw(&mut out, (LEFT, top), (middle, top), "red", RED, "8 4");
            text(&mut out, LEFT + LANE / 2, top - 4, "bad", "from here on it repeats for ever");
        }
        let mut last_calls = vec![String::new(); self.ranks];
        for (nth, line) in self.lines.iter().enumerate() {
            label(&mut out, nth, line, &mut last_calls[line.event.rank], nth + 1 == self.lines.len());
        }
        for (rank, lines) in waiting {
            text(&mut out, x(rank) - 10, end, "bad", "waits for");
            for (nth, line) in lines.iter().enumerate() {
                text(&mut out, x(rank) - 10, end + (nth + 1) * LINE, "bad", line);
            }
        }
        text(&mut out, LEFT / 2, height - title - 6, "small", LEGEND);
        out + "</g></svg>\n"
    }

    /// The lanes, in the colour of what each rank does.
    fn lanes(&self, out: &mut String) {
        for rank in 0..self.ranks {
            text(out, x(rank).saturating_sub(22), TOP - 32, "head", &format!("rank {rank}"));
            let (mut from, mut held, mut doing) = (TOP - 20, None, Doing::Idle);
            for nth in 0..=self.lines.len() {
                let line = self.lines.get(nth);
                let to = if line.is_some() { y(nth) } else { y(nth) - ROW / 2 };
                let mut band = |colour, width, dashes| {
                    _ = writeln!(
                        out,
                        "<line x1=\"{0}\" y1=\"{from}\" x2=\"{0}\" y2=\"{to}\" stroke=\"{colour}\" \
                         stroke-width=\"{width}\" stroke-dasharray=\"{dashes}\"/>",
                        x(rank)
                    );
                };
                match held {
                    Some(Mode::Exclusive) => band("#282", 13, "none"),
                    Some(Mode::Shared) => band("#9c6", 13, "none"),
                    None => {}
                }
                match doing {
                    Doing::Idle => band("#ccc", 2, "none"),
                    Doing::Calls => band("#69c", 5, "none"),
                    Doing::Waits => band(RED, 4, "5 4"),
                }
                if let Some(line) = line {
                    (from, held, doing) = (to, line.held[rank], line.doing[rank]);
                }
            }
        }
    }

    /// The arrows of a step: from the rank to the memory that its verb changes, and to ranks elsewhere that it wakes.
    fn arrow(&self, out: &mut String, nth: usize, line: &Line) {
        let Some(action) = line.event.action.filter(|_| !line.event.in_flight) else { return };
        let (rank, home) = (line.event.rank, action.at().rank);
        let begun = match line.event.step {
            Step::Deliver { .. } => self.sent(nth, rank, action),
            Step::Rank(_) => nth,
        };
        let wakes = |rank: Rank| rank < 128 && line.event.woken >> rank & 1 == 1;
        let changes = line.event.found != line.event.left || matches!(action, Action::Verb(Verb::Notify { .. }));
        let (name, colour) = if wakes(home) {
            ("orange", ORANGE)
        } else if line.verb.contains("FAILS") {
            ("red", RED)
        } else if changes {
            ("blue", BLUE)
        } else {
            ("grey", GREY)
        };
        if home != rank && home < self.ranks {
            let dashes = if changes { "none" } else { "4 3" };
            draw(out, (x(rank), y(begun)), (x(home), y(nth)), name, colour, dashes);
        }
        for other in (0..self.ranks).filter(|&other| other != home && other != rank && wakes(other)) {
            draw(out, (x(rank), y(nth)), (x(other), y(nth)), "orange", ORANGE, "4 3");
        }
    }

    /// The step that sent what a delivery delivers: equal messages arrive in order.
    fn sent(&self, nth: usize, rank: Rank, action: Action) -> usize {
        let is_it = |line: &Line| line.event.rank == rank && line.event.action == Some(action);
        let arrived = self.lines[..nth].iter().filter(|line| is_it(line) && line.verb.ends_with("arrives")).count();
        let sent = self.lines.iter().enumerate().filter(|(_, line)| is_it(line) && line.event.in_flight);
        sent.map(|(at, _)| at).nth(arrived).unwrap_or(nth)
    }
}

const LEGEND: &str =
    "Lanes: green holds a lock, blue in a call, dashed red waits. Arrows: blue changes, orange wakes, red fails.";

const BLUE: &str = "#36c";
const GREY: &str = "#999";
const ORANGE: &str = "#e80";
const RED: &str = "#d44";

fn x(rank: Rank) -> usize {
    LEFT + 20 + rank * LANE
}

fn y(nth: usize) -> usize {
    TOP + nth * ROW
}

/// The label of a step, to the right of its dot: the call if it begins, the verb and its word, the values.
fn label(out: &mut String, nth: usize, line: &Line, last_call: &mut String, is_last: bool) {
    let at = (x(line.event.rank), y(nth));
    text(out, 6, at.1 + 4, "small", &(nth + 1).to_string());
    let colour = if is_last { "#c00" } else { "#fff" };
    _ = writeln!(
        out,
        "<circle cx=\"{}\" cy=\"{}\" r=\"{}\" fill=\"{colour}\" stroke=\"#222\" stroke-width=\"1.5\"/>",
        at.0,
        at.1,
        if is_last { 7 } else { 5 }
    );
    if line.call != *last_call {
        text(out, at.0 + 12, at.1 - 17, "call", &line.call);
        last_call.clone_from(&line.call);
    }
    if line.event.returned {
        last_call.clear();
    }
    text(out, at.0 + 12, at.1 - 4, if is_last { "bad" } else { "" }, &format!("{}: {}", line.verb, line.word));
    text(out, at.0 + 12, at.1 + 12, "small", &line.effect);
    text(out, at.0 + 12, at.1 + 25, "then", &line.then);
}

fn draw(out: &mut String, from: (usize, usize), to: (usize, usize), name: &str, colour: &str, dashes: &str) {
    _ = writeln!(
        out,
        "<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" stroke=\"{colour}\" stroke-width=\"1.6\" \
         stroke-dasharray=\"{dashes}\" marker-end=\"url(#{name})\"/>",
        from.0, from.1, to.0, to.1
    );
}

fn text(out: &mut String, x: usize, y: usize, class: &str, text: &str) {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    // A white outline keeps the text readable across arrows.
    _ = writeln!(
        out,
        "<text x=\"{x}\" y=\"{y}\" class=\"{class}\" stroke=\"#fff\" stroke-width=\"3\" stroke-opacity=\"0.85\">{text}</text>\
         <text x=\"{x}\" y=\"{y}\" class=\"{class}\">{text}</text>"
    );
}

/// The text in lines of at most `most` letters.
fn wrapped(text: &str, most: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.is_empty() || line.len() + word.len() < most => {
                *line += if line.is_empty() { "" } else { " " };
                *line += word;
            }
            _ => lines.push(word.into()),
        }
    }
    lines
}

//! A trace as a graph for Graphviz: what each step saw.

use super::Trace;
use std::collections::HashMap;
use std::fmt::Write;

impl Trace {
    /// The trace as a graph in the DOT language. Each step is a node, in the column of its rank; solid edges are the
    /// order within a rank, dashed edges go from the step that wrote a word to the next step on it.
    pub fn dot(&self) -> String {
        let mut out = String::from("digraph trace {\n  node [shape=box, fontname=sans, fontsize=10];\n");
        for rank in 0..self.ranks {
            _ = writeln!(out, "  subgraph cluster_{rank} {{ label=\"rank {rank}\";");
            let mut before = None;
            for (nth, line) in self.lines.iter().enumerate().filter(|(_, line)| line.event.rank == rank) {
                let label = format!("{}: {} {}\\n{}", nth + 1, line.verb, line.word, line.effect);
                _ = writeln!(out, "    s{nth} [label=\"{}\"];", label.replace('"', "'"));
                if let Some(before) = before.replace(nth) {
                    _ = writeln!(out, "    s{before} -> s{nth};");
                }
            }
            out += "  }\n";
        }
        let mut last = HashMap::new();
        for (nth, line) in self.lines.iter().enumerate() {
            let Some(action) = line.event.action.filter(|_| !line.event.in_flight) else { continue };
            let at = (action.at().rank, action.at().word);
            if let Some(&(before, rank)) = last.get(&at)
                && rank != line.event.rank
            {
                _ = writeln!(out, "  s{before} -> s{nth} [style=dashed, constraint=false];");
            }
            if line.event.found != line.event.left || !last.contains_key(&at) {
                last.insert(at, (nth, line.event.rank));
            }
        }
        if let Some(first) = self.cycle {
            _ = writeln!(
                out,
                "  s{} -> s{first} [label=\"for ever\", color=red, constraint=false];",
                self.lines.len() - 1
            );
        }
        out + "}\n"
    }
}

//! Tables for people.

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, ContentArrangement, Table as Grid};

/// To which side a column keeps.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// A table without rules: a row of names, and rows of cells below.
#[derive(Debug)]
pub struct Table {
    grid: Grid,
}

impl Table {
    /// A table with the given columns.
    #[must_use]
    pub fn new(columns: &[(&str, Align)]) -> Self {
        let mut grid = Grid::new();
        grid.load_style(NOTHING)
            .set_content_arrangement(ContentArrangement::Disabled);
        grid.set_header(columns.iter().map(|(name, _)| *name));
        for (column, (_, align)) in grid.column_iter_mut().zip(columns) {
            column.set_padding((0, 2));
            column.set_cell_alignment(match align {
                Align::Left => CellAlignment::Left,
                Align::Right => CellAlignment::Right,
            });
        }
        Self { grid }
    }

    /// Adds a row.
    pub fn row<C: Into<String>>(&mut self, cells: impl IntoIterator<Item = C>) {
        self.grid.add_row(cells.into_iter().map(Into::into));
    }

    /// The table as text, without a line end after it.
    #[must_use]
    pub fn text(&self) -> String {
        self.grid
            .lines()
            .map(|line| line.trim_end().to_owned())
            .collect::<Vec<_>>()
            .join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_keep_left_and_numbers_right() {
        let mut table = Table::new(&[("node", Align::Left), ("used", Align::Right)]);
        table.row(["a", "7"]);
        table.row(["node-b", "1,000"]);
        assert_eq!(table.text(), "node     used\na           7\nnode-b  1,000");
    }
}

//! Parquet files whose columns are 64-bit integers without nulls.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use parquet::column::reader::ColumnReader;
use parquet::file::reader::{FileReader, SerializedFileReader};

/// The Parquet files of a folder, in order.
pub fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.expect("an entry of a folder").path())
        .filter(|path| path.extension().is_some_and(|name| name == "parquet"))
        .collect();
    found.sort();
    found
}

/// The first columns of a file, one row group after another.
pub fn row_groups<const COLUMNS: usize>(
    path: &Path,
) -> impl Iterator<Item = [Vec<i64>; COLUMNS]> {
    let file = File::open(path).expect("a file that can be read");
    let reader = SerializedFileReader::new(file).expect("a Parquet file");
    (0..reader.num_row_groups()).map(move |number| {
        let group = reader.get_row_group(number).expect("a row group");
        let rows = group.metadata().num_rows() as usize;
        std::array::from_fn(|column| match group.get_column_reader(column) {
            Ok(ColumnReader::Int64ColumnReader(mut reader)) => {
                let mut values = Vec::with_capacity(rows);
                let mut present = Vec::with_capacity(rows);
                reader
                    .read_records(rows, Some(&mut present), None, &mut values)
                    .expect("a column");
                assert_eq!(values.len(), rows, "a column has nulls");
                values
            }
            _ => panic!("a column is not one of 64-bit integers"),
        })
    })
}

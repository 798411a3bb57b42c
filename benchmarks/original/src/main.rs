//! A benchmark's program on differential-dataflow itself, from the benchmark's own files.
//!
//!     original bfs edges --changes changes --rounds 1x50,1000x999 --workers 2
//!
//! `edges` is a folder of Parquet files of pairs, which are there at time 0. `changes` is one of
//! update rows: a pair, its time, and its diff. A round is what happens at one logical time, from 1
//! on; `--rounds 1000x999` processes a thousand of them in one physical step, and does so 999 times,
//! or until the changes come to an end.
//!
//! One line of JSON says what it took. Reading the edges is a part of the load, and reading the
//! changes of nothing. Each worker reads files of its own, and takes in its share of the changes.

mod digest;
mod parquet_rows;
mod programs;

use std::cell::Cell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use differential_dataflow::input::Input;
use timely::dataflow::operators::probe::Handle;
use timely::worker::Worker;

use digest::Digest;
use programs::{Pair, Time};

const USAGE: &str =
    "original PROGRAM EDGES [--changes FOLDER] [--rounds ROUNDSxSTEPS,...] [--workers N]";

struct Options {
    program: String,
    edges: PathBuf,
    changes: Option<PathBuf>,
    /// Rounds in a step, and how many such steps.
    shapes: Vec<(usize, usize)>,
    workers: usize,
}

impl Options {
    fn of(mut arguments: impl Iterator<Item = String>) -> Option<Options> {
        let mut options = Options {
            program: arguments.next()?,
            edges: arguments.next()?.into(),
            changes: None,
            shapes: vec![],
            workers: 1,
        };
        while let Some(name) = arguments.next() {
            let value = arguments.next()?;
            match name.as_str() {
                "--changes" => options.changes = Some(value.into()),
                "--rounds" => options.shapes = value.split(',').map(shape).collect::<Option<_>>()?,
                "--workers" => options.workers = value.parse().ok()?,
                _ => return None,
            }
        }
        Some(options)
    }
}

fn shape(text: &str) -> Option<(usize, usize)> {
    let (rounds, steps) = text.split_once('x')?;
    Some((rounds.parse().ok()?, steps.parse().ok()?))
}

struct Change {
    pair: Pair,
    time: Time,
    diff: isize,
}

/// All changes, in the order of their times.
fn changes(folder: &PathBuf) -> Vec<Change> {
    let mut found = vec![];
    for path in parquet_rows::files(folder) {
        for [a, b, time, diff] in parquet_rows::row_groups(&path) {
            found.extend((0..a.len()).map(|row| Change {
                pair: (a[row], b[row]),
                time: time[row] as Time,
                diff: diff[row] as isize,
            }));
        }
    }
    found.sort_by_key(|change| change.time);
    found
}

/// What one worker has seen.
struct Seen {
    read: Duration,
    load: Duration,
    /// For each shape the time of each of its steps.
    steps: Vec<Vec<Duration>>,
    pairs: usize,
    rounds: Time,
    loaded: Digest,
    last: Digest,
}

fn run(worker: &mut Worker, options: &Options, changes: &[Change]) -> Seen {
    let (index, peers) = (worker.index(), worker.peers());
    let now = Rc::new(Cell::new(Digest::default()));
    let probe = Handle::new();
    let mut input = worker.dataflow(|scope| {
        let (input, edges) = scope.new_collection();
        let sum = now.clone();
        programs::program(&options.program, scope, edges)
            .unwrap_or_else(|| panic!("there is no program {}", options.program))
            .inspect(move |((a, b), _, diff)| sum.set(sum.get() + Digest::of(&[*a, *b], *diff)))
            .probe_with(&probe);
        input
    });

    let start = Instant::now();
    let mut read = Duration::ZERO;
    let mut pairs = 0;
    for path in parquet_rows::files(&options.edges).iter().skip(index).step_by(peers) {
        let mut groups = parquet_rows::row_groups(path);
        loop {
            let began = Instant::now();
            let group = groups.next();
            read += began.elapsed();
            let Some([a, b]) = group else { break };
            pairs += a.len();
            for pair in a.into_iter().zip(b) {
                input.insert(pair);
            }
            worker.step();
        }
    }
    input.advance_to(1);
    input.flush();
    worker.step_while(|| probe.less_than(input.time()));
    let load = start.elapsed();
    let loaded = now.get();

    let mut steps = vec![];
    let (mut first, mut left) = (1, changes);
    for (rounds, count) in &options.shapes {
        let mut took = vec![];
        for _ in 0..*count {
            if left.is_empty() {
                break;
            }
            let began = Instant::now();
            let then = first + *rounds as Time;
            let (these, later) = left.split_at(left.partition_point(|change| change.time < then));
            for change in these.iter().skip(index).step_by(peers) {
                input.update_at(change.pair, change.time, change.diff);
            }
            input.advance_to(then);
            input.flush();
            worker.step_while(|| probe.less_than(input.time()));
            took.push(began.elapsed());
            (first, left) = (then, later);
        }
        steps.push(took);
    }
    let last = changes[..changes.len() - left.len()].last().map_or(0, |change| change.time);
    Seen { read, load, steps, pairs, rounds: last, loaded, last: now.get() }
}

/// Steps of one size, as JSON.
fn steps(rounds: usize, took: &[Duration]) -> String {
    let mut sorted: Vec<f64> = took.iter().map(Duration::as_secs_f64).collect();
    sorted.sort_by(f64::total_cmp);
    let all: f64 = sorted.iter().sum();
    let middle = |at: usize| sorted.get(at).map_or(0.0, |took| took * 1e3);
    let median = (middle(sorted.len().saturating_sub(1) / 2) + middle(sorted.len() / 2)) / 2.0;
    let max = sorted.last().map_or(0.0, |took| took * 1e3);
    format!(
        "{{\"rounds\": {rounds}, \"steps\": {}, \"seconds\": {all:.6}, \"median_ms\": {median:.4}, \
         \"max_ms\": {max:.4}}}",
        took.len()
    )
}

/// The most memory that this process ever had, in GiB.
fn peak() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    kilobytes.unwrap_or(0.0) / (1 << 20) as f64
}

fn main() {
    let Some(options) = Options::of(std::env::args().skip(1)) else {
        eprintln!("usage: {USAGE}");
        std::process::exit(2);
    };
    let changes = options.changes.as_ref().map(changes).unwrap_or_default();
    let config = match options.workers {
        1 => timely::Config::thread(),
        workers => timely::Config::process(workers),
    };
    let options = Arc::new(options);
    let given = options.clone();
    let workers = timely::execute(config, move |worker| run(worker, &given, &changes));
    let seen: Vec<Seen> = workers
        .expect("workers that start")
        .join()
        .into_iter()
        .map(|seen| seen.expect("a worker that comes to its end"))
        .collect();

    let sum = |of: fn(&Seen) -> Digest| seen.iter().map(of).fold(Digest::default(), |a, b| a + b);
    let (loaded, last) = (sum(|seen| seen.loaded), sum(|seen| seen.last));
    let shapes: Vec<String> = options
        .shapes
        .iter()
        .zip(&seen[0].steps)
        .map(|((rounds, _), took)| steps(*rounds, took))
        .collect();
    println!(
        "{{\"program\": \"{}\", \"workers\": {}, \"edges\": {}, \"read_seconds\": {:.3}, \
         \"load_seconds\": {:.4}, \"rounds\": {}, \"steps\": [{}], \"loaded_records\": {}, \
         \"loaded_hashes\": {}, \"records\": {}, \"hashes\": {}, \"peak_gib\": {:.2}}}",
        options.program,
        seen.len(),
        seen.iter().map(|seen| seen.pairs).sum::<usize>(),
        seen[0].read.as_secs_f64(),
        seen[0].load.as_secs_f64(),
        seen[0].rounds,
        shapes.join(", "),
        loaded.records,
        loaded.hashes,
        last.records,
        last.hashes,
        peak(),
    );
}

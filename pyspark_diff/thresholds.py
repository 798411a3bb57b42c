"""Thresholds: the sizes at which the library switches from one implementation to another.

    output with thresholds t  =  output with thresholds u      t and u differ in cost only

One value has all of them. The library reads the value at each decision, so a change applies at
once, in the driver's process. Workers of Spark have the values below.

A constant that a compiled kernel reads is part of its machine code, and no threshold.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Thresholds:
    """All thresholds. A name ends in the unit, and in ``min`` or ``max``: the first or the last
    size for which the decision in the name holds.
    """

    # kernels
    #: Rows that one call of insertion sort consolidates: calls are the cost of few rows. Its check
    #: of overflow allows 4,096 rows.
    consolidate_few_rows_max: int = 128
    #: Records whose counts one call looks up in all batches: calls are the cost of few records.
    look_up_few_rows_max: int = 128
    #: Rows that are partitioned before they are sorted, so that a part fits the CPU cache.
    partition_rows_min: int = 1 << 16
    #: Slots per row of a table with a slot for each code, which replaces a sort: 6 million keys out
    #: of 10 million take 0.06 s instead of 0.4 s.
    dense_slots_per_row_max: int = 8
    #: Values that are sorted in one integer with the numbers of their rows; numpy sorts fewer.
    sort_packed_rows_min: int = 1 << 12
    #: Rows of plain numbers whose batches are merged; fewer are consolidated.
    merge_rows_min: int = 1 << 7
    #: Rows of several batches that are checked for common keys. Rows of several buckets have none,
    #: and a sort takes longer than the rest of a join.
    disjoint_check_rows_min: int = 50_000
    #: Pairs of one key that a join multiplies out. Larger keys are replayed in order of time if
    #: they have many more pairs than updates: values that never meet then cost nothing.
    multiply_pairs_max: int = 4096
    #: Pairs that a merge join computes at once: the next ones reuse their memory.
    join_chunk_pairs: int = 1 << 20
    #: Updates that an index of a loop adds as a batch; fewer are added key by key.
    index_batch_rows_min: int = 1 << 14
    #: New rows whose exact numbers divide keys into ranges; of more rows a sample of this size.
    exact_ranges_rows_max: int = 1 << 16
    #: Bytes of columns that one kernel has in memory: wider rows are processed in more pieces.
    work_bytes_max: int = 3 << 29
    #: Decimals that a kernel computes: for fewer the call costs more than Arrow.
    decimal_kernel_rows_min: int = 256
    #: Values whose bounds Python computes from a list: for more numpy is faster.
    list_values_max: int = 32
    #: Rows that all accumulators read before the next rows, so that groups stay in the CPU cache.
    accumulate_slice_rows: int = 1 << 15
    #: Rows per change of a window's partition that is read whole.
    window_whole_rows_max: int = 256
    #: Rows that a window reads beyond those that it certainly needs; at least one.
    window_spare_rows: int = 16
    #: Entries of windows that are evaluated at once; the entries of one time may exceed it.
    window_entries_max: int = 1 << 21
    #: Rows of several batches that are accumulated at once.
    standing_piece_rows: int = 1 << 23
    #: Seconds without a task after which a worker returns its free memory.
    idle_memory_seconds: float = 1.0
    #: Bytes of a worker that returns free memory: a small one has little to return.
    idle_memory_bytes_min: int = 1 << 29
    #: Seconds of compilation in a process before the log has a line about it.
    compile_log_seconds: float = 2.0

    # spark
    #: Rows of a frame that the driver collects to evaluate it once; a larger one is read again.
    collect_frame_rows_max: int = 200_000
    #: Update rows for which an operator runs on the driver. Two cores count 650,000 updates three
    #: times in 0.9 s on the driver, and in 5 s as Spark jobs. The driver's memory and clusters with
    #: many cores are reasons against a higher number.
    driver_rows_max: int = 2_000_000
    #: The same on a cluster without more cores than the driver, which loads ten million edges in a
    #: third of the time of two executors with one core each. If Spark runs in the driver's process
    #: it is the minimum, and the number grows with memory.
    driver_rows_alone_max: int = 20_000_000
    #: Commits of a Delta table whose changed files one reading compares; Spark reads more.
    changed_files_commits_max: int = 10_000

    # trace
    #: Batches that a spine merges if a merge is due; fewer of them wait for
    #: `spine_merge_rows_min`.
    spine_merge_batches_min: int = 6
    #: Rows of the newer batches that a spine merges although the batches are few.
    spine_merge_rows_min: int = 64
    #: Divisor of the machine's memory for all large batches in memory, and of its free memory for
    #: each one.
    large_memory_divisor: int = 4
    #: Rows of a table that the driver builds without a Spark job.
    driver_table_rows_max: int = 100_000
    #: Rows of one record batch of a task.
    table_chunk_rows: int = 1 << 16
    #: Rows of a bucket that a task merges at once.
    table_piece_rows: int = 1 << 23
    #: Bytes of one request of a download.
    download_piece_bytes: int = 1 << 25
    #: Tombstones of a store; if there are more, those below a new floor are deleted.
    tombstones_max: int = 200
    #: Seconds before the second try of a commit; they double.
    commit_pause_seconds: float = 0.02
    #: Seconds by which the clocks of two machines may differ: a hold lasts longer by them.
    clock_difference_seconds_max: float = 60.0
    #: Retries of a request after a lost answer.
    request_retries_max: int = 5

    # operators
    #: Rows in a chunk of ranges or blocks, so that the copies of its rows stay small.
    chunk_rows: int = 1 << 15

    # runners
    #: Rows of a bucket's batch that stays in the driver's memory until another process reads it: a
    #: megabyte of numbers. Files took a seventh of a step of 10,000 changes. A commit of a store
    #: contains such batches. Without a store larger ones stay too (`large_memory_divisor`).
    in_memory_rows_max: int = 1 << 15
    #: Bytes of a batch that stays in the driver's memory.
    in_memory_bytes_max: int = 1 << 22
    #: Rows that are checked for one common time or diff: fewer are not worth the check.
    single_value_check_rows_min: int = 1 << 12
    #: Rows too wide for one number each that are sorted where they are, without a kernel for parts.
    sort_parts_rows_max: int = 4096
    #: Pairs of a bucket in memory, even if there is room for more. The consolidation of 10^8 pairs
    #: takes a fourth of its time and memory with 40 million pairs at once.
    join_piece_pairs: int = 1 << 22
    #: Rows whose buckets several threads process; fewer are one call.
    threaded_rows_min: int = 50_000
    #: Rows per bucket for the same: few buckets use threads earlier.
    threaded_rows_per_bucket_min: int = 8_192
    #: Files of a batch that look-ups search one by one; one search of all keys covers more files.
    look_up_files_max: int = 4
    #: Rows of a bilinear or keyed step that are processed bucket by bucket: for fewer rows a search
    #: of each key in all files costs less. Keys that are numbers have one search in any case.
    look_up_bucket_rows_min: int = 500
    #: Rows of an input whose results of expressions are kept for other operators.
    cached_stage_rows_max: int = 1024
    #: Rows of a table that the driver reads from Parquet files at once.
    parquet_table_rows: int = 1 << 20
    #: Files of a frame that the driver reads; of more files Spark's tasks read the footers.
    parquet_files_max: int = 10_000
    #: Threads that read footers.
    parquet_footer_threads_max: int = 8
    #: Rows of a result that Spark collects without a job; more come as Arrow from a job.
    collect_rows_max: int = 1000
    #: Rows in a task before it consolidates them and passes them on.
    task_chunk_rows: int = 1 << 23
    #: Bytes in a task before it consolidates its rows and passes them on.
    task_chunk_bytes: int = 1 << 28
    #: Rows of one blob: large enough that Spark's cost per row vanishes, small enough for buffers.
    blob_rows: int = 1 << 20
    #: Bytes of the output of all buckets that the results of tasks contain; more goes to files.
    inline_output_bytes_max: int = 1 << 18
    #: Bytes of buffers up to which a table counts as large as its buffers: its rows may be a slice
    #: of them, and their exact size costs more to compute.
    buffer_size_bytes_max: int = 1 << 16

    # engine
    #: Bytes of a waiting table in a commit; a larger table is a file.
    commit_table_bytes_max: int = 1 << 22
    #: Threads of one loop on integers.
    loop_shards_max: int = 8
    #: New rows for which the indices of a loop are divided by ranges of keys.
    loop_shard_rows_min: int = 2_000
    #: Rows of a coordinate for which several threads process an operator's ranges.
    loop_threaded_rows_min: int = 1_000
    #: Batches that Spark merges in a loop: the other jobs of an iteration read fewer batches in
    #: less time than a job needs to merge them.
    loop_merge_batches_min: int = 8
    #: Seconds after which a running loop writes to the log, and between two lines.
    loop_log_seconds: float = 5.0
    #: Updates of a coordinate that become a batch of their own: a sort of the updates of all
    #: coordinates costs more than reading a further batch.
    coordinate_batch_rows_min: int = 1 << 20
    #: The same for a coordinate with three of four updates.
    main_coordinate_batch_rows_min: int = 1 << 16
    #: Iterations after which a loop is watched for oscillation: most loops end earlier.
    watch_iterations_min: int = 64
    #: Updates of a period that are kept for the check that they cancel out.
    watch_rows_max: int = 100_000
    #: Pending updates that the driver consolidates: more may not fit into its memory.
    pending_rows_max: int = 1_000_000
    #: Seconds before a step shows its progress: shorter steps show nothing.
    progress_after_seconds: float = 2.0
    #: Seconds between two lines of log about a step.
    progress_log_seconds: float = 10.0
    #: Seconds between two reads of the progress.
    progress_read_seconds: float = 0.5
    #: Seconds without any step after which the thread that shows progress ends.
    progress_idle_seconds: float = 30.0
    #: Waiting rows that can be rolled back: the history of an input that never advances would grow
    #: without end.
    rewind_rows_max: int = 1_000_000
    #: New rows of a step that keeps memory between kernels.
    large_step_rows_min: int = 50_000

    # dataflow
    #: Trials that search for the updates that make a step fail.
    blame_trials_max: int = 24
    #: Seconds after which no further trial begins.
    blame_seconds_max: float = 30.0
    #: Updates in a trial.
    blame_rows_max: int = 100_000

    # graphs
    #: Iterations between two groups of labels, in which most labels spread. Empty iterations cost
    #: nothing.
    label_group_rounds: int = 32
    #: Iterations after the last group in which a label spreads before a contraction.
    label_rounds: int = 64

    # data_source
    #: Rows of a record batch that Spark receives.
    read_batch_rows: int = 1 << 16
    #: Keys that a scan looks up; for more it reads the buckets.
    look_up_keys_max: int = 1 << 12
    #: Bytes of rows with which a file of an inbox is complete.
    inbox_file_bytes_min: int = 1 << 27


#: The thresholds in use. Read it as ``thresholds.current`` at each decision, never from a copy.
current = Thresholds()


@contextmanager
def using(**values: float) -> Iterator[Thresholds]:
    """Use other thresholds in this process, in all threads, until the context ends.

    Parameters
    ----------
    **values : int or float
        Some of the fields of `Thresholds`.

    Raises
    ------
    TypeError
        If there is no threshold of a name.

    Examples
    --------
    >>> from pyspark_diff import thresholds
    >>> with thresholds.using(merge_rows_min=0):
    ...     thresholds.current.merge_rows_min
    0
    >>> thresholds.current.merge_rows_min
    128
    """
    global current
    before = current
    current = replace(before, **values)  # type: ignore[arg-type]
    try:
        yield current
    finally:
        current = before

package pysparkdiff

import scala.collection.mutable

/** One account of work. */
final class Counts {
  private[pysparkdiff] var jobs, jobsDone, stages, stagesDone = 0L
  private[pysparkdiff] var tasks, tasksStarted, tasksDone, rows, bytes, nanos = 0L

  def all: Vector[Long] = Vector(
    jobs, jobsDone, stages, stagesDone, tasks, tasksStarted, tasksDone, rows, bytes,
    nanos / 1000000)

  override def toString: String = all.mkString("[", ",", "]")
}

/** The work done for each dataflow, operator, iteration and time, and the outstanding times.
  *
  * {{{
  *   every count only grows                       whatever events come, how often, in which order
  *   done ≤ started ≤ all                         of tasks; and done = all once no job runs
  *   rows, bytes   =  Σ over partitions of stages of the maximum that an attempt reported
  *   milliseconds  =  Σ over attempts of the time they ran, those that run included
  *   frontier ≤ committed                         by `begin` and `end`, whatever jobs run
  *   memory        =  O(running stages and their tasks + operators of registered dataflows)
  * }}}
  *
  * So failed and speculative attempts and resubmitted stages count once. A finished or
  * failed job has no work left: its skipped stages count as done. This file uses no type of
  * Spark. Any thread may call any method.
  *
  * @param clock
  *   nanoseconds, which only grow
  */
final class JobBook(clock: () => Long = () => System.nanoTime()) {
  import JobBook._

  private final class Flow {
    val total = new Counts
    val operators = mutable.LinkedHashMap.empty[String, Counts]
    val labels = mutable.LinkedHashMap.empty[String, Counts]
    val running = mutable.LinkedHashMap.empty[Int, Job]
    // The frontiers that the last commit and the running step hold; none before the first step.
    var committed: Option[Antichain] = None
    var lower = Antichain.empty
    val outstanding = new OutstandingTimes

    /** The accounts that a job counts in. Only the latest labels have an account. */
    def accounts(label: Label): Seq[Counts] = {
      val latest = labels.remove(label.text).getOrElse(new Counts)
      labels(label.text) = latest
      if (labels.size > MostLabels) labels.remove(labels.head._1)
      Seq(total, operators.getOrElseUpdate(label.escapedOperator, new Counts), latest)
    }

    def hold(frontier: Antichain, step: Antichain): Unit = {
      val before = committed.getOrElse(Antichain.empty).elements ++ lower.elements
      val after = frontier.elements ++ step.elements
      outstanding.update(before.map(_ -> -1L) ++ after.map(_ -> 1L))
      committed = Some(frontier)
      lower = step
    }
  }

  private final class Job(val id: Int, val label: Label, val flow: Flow) {
    val accounts = flow.accounts(label)
    val stages = mutable.LinkedHashMap.empty[Int, Stage]

    def add(change: Counts => Unit): Unit = accounts.foreach(change)
  }

  private final class Stage(val job: Job, val tasks: Int, val parents: Seq[Int]) {
    var over = false
    val started, done = mutable.HashSet.empty[Int]
    val attempts = mutable.HashMap.empty[Long, Attempt]
    val moved = mutable.HashMap.empty[Int, (Long, Long)]
  }

  private final class Attempt(val partition: Int, var since: Long)

  private val flows = mutable.HashMap.empty[String, Flow]
  private val jobs = mutable.HashMap.empty[Int, Job]
  private val stages = mutable.HashMap.empty[Int, Stage]

  // Dataflows

  def register(dataflow: String): Unit = synchronized(flows.getOrElseUpdate(dataflow, new Flow))

  def forget(dataflow: String): Unit = synchronized {
    for (flow <- flows.remove(dataflow)) flow.running.keys.toVector.foreach(jobEnded)
  }

  def isEmpty: Boolean = synchronized(flows.isEmpty)

  /** Whether no job of a dataflow runs. */
  def isIdle: Boolean = synchronized(jobs.isEmpty)

  def clear(): Unit = synchronized { flows.clear(); jobs.clear(); stages.clear() }

  /** A step begins: it may emit updates at any time beyond `lower`. */
  def begin(dataflow: String, lower: Antichain): Unit = synchronized {
    for (flow <- flows.get(dataflow)) {
      // Spark may have dropped the event that ended a job, and steps follow one another.
      flow.running.keys.toVector.foreach(jobEnded)
      flow.hold(flow.committed.getOrElse(lower), lower)
    }
  }

  /** A step ended, with or without a commit: updates may yet come at times beyond `frontier`. */
  def end(dataflow: String, frontier: Antichain): Unit = synchronized {
    flows.get(dataflow).foreach(_.hold(frontier, Antichain.empty))
  }

  /** The least times at which updates may yet come; None while no step has begun. */
  def frontier(dataflow: String): Option[Antichain] = synchronized {
    flows.get(dataflow).filter(_.committed.nonEmpty).map(_.outstanding.frontier)
  }

  // Events

  def jobStarted(id: Int, text: String, listed: Seq[StageOfJob]): Unit = synchronized {
    val label = Label.parse(text)
    for (flow <- flows.get(label.dataflow) if !jobs.contains(id)) {
      val job = new Job(id, label, flow)
      jobs(id) = job
      flow.running(id) = job
      // Two jobs may share a stage; it counts for the first.
      for (one <- listed if !stages.contains(one.id)) {
        val stage = new Stage(job, one.tasks, one.parents)
        job.stages(one.id) = stage
        stages(one.id) = stage
      }
      job.add { c =>
        c.jobs += 1
        c.stages += job.stages.size
        c.tasks += job.stages.values.map(_.tasks.toLong).sum
      }
    }
  }

  def jobEnded(id: Int): Unit = synchronized {
    for (job <- jobs.remove(id)) {
      settle(job)
      for ((stageId, stage) <- job.stages) {
        finish(stage)
        stages.remove(stageId)
      }
      job.flow.running.remove(id)
      job.add(_.jobsDone += 1)
    }
  }

  def knows(stage: Int): Boolean = synchronized(stages.contains(stage))

  /** Spark submits a stage after all its parents: a parent that never ran was skipped. */
  def stageSubmitted(id: Int): Unit = synchronized {
    for (stage <- stages.get(id); parent <- stage.parents) skipped(parent)
  }

  def stageCompleted(id: Int, failed: Boolean): Unit = synchronized {
    if (!failed) stages.get(id).foreach(finish)
  }

  def taskStarted(stageId: Int, partition: Int, task: Long): Unit = synchronized {
    for (stage <- stages.get(stageId)) {
      stage.attempts.getOrElseUpdate(task, new Attempt(partition, clock()))
      start(stage, partition)
    }
  }

  /** The partition of an attempt, if the attempt belongs to a dataflow. */
  def partitionOf(stageId: Int, task: Long): Option[Int] = synchronized {
    stages.get(stageId).flatMap(_.attempts.get(task)).map(_.partition)
  }

  /** Record the rows and bytes that an attempt at a task has moved so far. */
  def taskMoved(stageId: Int, partition: Int, rows: Long, bytes: Long): Unit = synchronized {
    for (stage <- stages.get(stageId)) {
      val (rowsBefore, bytesBefore) = stage.moved.getOrElse(partition, (0L, 0L))
      val now = (math.max(rows, rowsBefore), math.max(bytes, bytesBefore))
      stage.moved(partition) = now
      stage.job.add { c =>
        c.rows += now._1 - rowsBefore
        c.bytes += now._2 - bytesBefore
      }
    }
  }

  def taskEnded(stageId: Int, partition: Int, task: Long, succeeded: Boolean): Unit =
    synchronized {
      for (stage <- stages.get(stageId)) {
        stage.attempts.remove(task).foreach(count(stage.job, _, clock()))
        if (succeeded) start(stage, partition)
        if (succeeded && !stage.over && stage.done.size < stage.tasks && stage.done.add(partition)) {
          stage.job.add(_.tasksDone += 1)
        }
      }
    }

  private def start(stage: Stage, partition: Int): Unit =
    if (!stage.over && stage.started.size < stage.tasks && stage.started.add(partition)) {
      stage.job.add(_.tasksStarted += 1)
    }

  private def finish(stage: Stage): Unit = if (!stage.over) {
    stage.over = true
    stage.job.add { c =>
      c.stagesDone += 1
      c.tasksStarted += stage.tasks - stage.started.size
      c.tasksDone += stage.tasks - stage.done.size
    }
  }

  private def skipped(id: Int): Unit = for (stage <- stages.get(id) if !stage.over) {
    finish(stage)
    stage.parents.foreach(skipped)
  }

  /** Count the time of the running attempts up to now, and start their next interval. */
  private def settle(job: Job): Unit = {
    val now = clock()
    for (stage <- job.stages.values; attempt <- stage.attempts.values) count(job, attempt, now)
  }

  private def count(job: Job, attempt: Attempt, now: Long): Unit = {
    job.add(_.nanos += math.max(0L, now - attempt.since))
    attempt.since = math.max(now, attempt.since)
  }

  // Reports

  /** The counts of a dataflow and its running jobs, as JSON; None if it is not registered. */
  def counts(dataflow: String): Option[String] = synchronized {
    flows.get(dataflow).map(flow => s"{${totals(flow)}}")
  }

  /** As `counts`, with the accounts of each operator and of the last labels. */
  def snapshot(dataflow: String): Option[String] = synchronized {
    for (flow <- flows.get(dataflow)) yield {
      s"{${totals(flow)},\"operators\":${json(flow.operators)},\"labels\":${json(flow.labels)}}"
    }
  }

  private def json(accounts: Iterable[(String, Counts)]): String =
    accounts.map { case (name, counts) => s"\"$name\":$counts" }.mkString("{", ",", "}")

  private def totals(flow: Flow): String = {
    flow.running.values.foreach(settle)
    val running = flow.running.values.map { job =>
      val done = job.stages.values.map(s => if (s.over) s.tasks else s.done.size).sum
      s"""["${job.label.text}",$done,${job.stages.values.map(_.tasks).sum}]"""
    }
    s"\"counts\":${flow.total},\"running\":${running.mkString("[", ",", "]")}"
  }
}

object JobBook {

  /** A stage in the list of a started job. */
  final case class StageOfJob(id: Int, tasks: Int, parents: Seq[Int])

  /** The number of latest labels that have an account in a dataflow. */
  val MostLabels = 256
}

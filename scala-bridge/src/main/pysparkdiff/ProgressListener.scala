package pysparkdiff

import org.apache.spark.Success
import org.apache.spark.scheduler._
import org.slf4j.LoggerFactory

/** Passes Spark's events for labelled jobs to a book.
  *
  * {{{
  *   a job without the label  ⟹  it costs one read of its properties, one look-up for each event
  *   a fault in here          ⟹  it is logged once and never reaches Spark; `healthy` is false from
  *                                then on, and later events are ignored
  * }}}
  */
final class ProgressListener(book: JobBook) extends SparkListener {

  @volatile private var broken = false

  def healthy: Boolean = !broken

  override def onJobStart(event: SparkListenerJobStart): Unit = guarded {
    val text = if (event.properties == null) null else event.properties.getProperty(Bridge.Label)
    if (text != null) {
      val stages = event.stageInfos.map(s => JobBook.StageOfJob(s.stageId, s.numTasks, s.parentIds))
      book.jobStarted(event.jobId, text, stages)
    }
  }

  override def onJobEnd(event: SparkListenerJobEnd): Unit = guarded(book.jobEnded(event.jobId))

  override def onStageSubmitted(event: SparkListenerStageSubmitted): Unit =
    guarded(book.stageSubmitted(event.stageInfo.stageId))

  override def onStageCompleted(event: SparkListenerStageCompleted): Unit =
    guarded(book.stageCompleted(event.stageInfo.stageId, event.stageInfo.failureReason.isDefined))

  override def onTaskStart(event: SparkListenerTaskStart): Unit =
    guarded(book.taskStarted(event.stageId, event.taskInfo.partitionId, event.taskInfo.taskId))

  override def onTaskEnd(event: SparkListenerTaskEnd): Unit = guarded {
    if (book.knows(event.stageId)) {
      val partition = event.taskInfo.partitionId
      moved(event.stageId, partition, named(event.taskInfo.accumulables))
      book.taskEnded(event.stageId, partition, event.taskInfo.taskId, event.reason == Success)
    }
  }

  /** The metrics of running tasks, from the heartbeats of their executors. */
  override def onExecutorMetricsUpdate(event: SparkListenerExecutorMetricsUpdate): Unit = guarded {
    for ((task, stage, _, told) <- event.accumUpdates) running(stage, task, named(told))
  }

  /** Record the rows and bytes that a running attempt has moved. */
  def running(stage: Int, task: Long, told: => Iterable[(String, Any)]): Unit =
    for (partition <- book.partitionOf(stage, task)) moved(stage, partition, told)

  override def onApplicationEnd(event: SparkListenerApplicationEnd): Unit = guarded(book.clear())

  private def named(told: Iterable[AccumulableInfo]): Iterable[(String, Any)] =
    for (one <- told; name <- one.name; value <- one.update) yield name -> value

  private def moved(stage: Int, partition: Int, told: Iterable[(String, Any)]): Unit = {
    var rows, bytes = 0L
    told.foreach {
      case (name, n: Long) if n > 0 =>
        if (ProgressListener.Rows(name)) rows += n else if (ProgressListener.Bytes(name)) bytes += n
      case _ =>
    }
    book.taskMoved(stage, partition, rows, bytes)
  }

  private def guarded(body: => Unit): Unit =
    if (healthy) {
      try body
      catch {
        case fault: Throwable =>
          broken = true
          if (fault.isInstanceOf[InterruptedException]) Thread.currentThread().interrupt()
          ProgressListener.log.warn("progress is told by the driver from now on", fault)
      }
    }
}

object ProgressListener {

  /** Spark's metrics of moved rows: reads of sources and shuffles, and writes to shuffles. */
  val Rows: Set[String] = Set("input.recordsRead", "shuffle.read.recordsRead",
    "shuffle.write.recordsWritten").map("internal.metrics." + _)

  /** Spark's metrics of moved bytes: as `Rows`, and data to and from Python workers. */
  val Bytes: Set[String] = Set("input.bytesRead", "shuffle.read.remoteBytesRead",
    "shuffle.read.localBytesRead", "shuffle.write.bytesWritten").map("internal.metrics." + _) ++
    Set("data sent to Python workers", "data returned from Python workers")

  private val log = LoggerFactory.getLogger("pysparkdiff")
}

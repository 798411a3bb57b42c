package pysparkdiff

import scala.util.control.NonFatal

import org.apache.spark.SparkContext

/** What Spark knows of the progress of dataflows, for one SparkContext: the one public entry.
  *
  * {{{
  *   a dataflow is registered  ⟺  the listener is attached        nothing outlives the SparkContext
  *   frontier(d)  ≤  what the last `begin` or `end` of d said      never ahead of what was committed
  * }}}
  *
  * Called from Python (`pyspark_diff/spark/bridge.py`). Antichains are text: times separated by
  * semicolons, their coordinates by commas.
  */
final class Bridge(sc: SparkContext) {

  private val book = new JobBook
  private val listener = new ProgressListener(book)
  private lazy val local = if (sc.isLocal) tried(new LocalTasks) else None
  private var attached = false

  /** Of the protocol between this class and Python. */
  def version(): Int = Bridge.Version

  def scalaVersion(): String = scala.util.Properties.versionNumberString

  /** Whether what is told can be relied on. */
  def healthy(): Boolean = listener.healthy

  def register(dataflow: String): Unit = synchronized {
    book.register(dataflow)
    if (!attached) sc.addSparkListener(listener)
    attached = true
  }

  def forget(dataflow: String): Unit = synchronized {
    book.forget(dataflow)
    if (book.isEmpty) detach()
  }

  def close(): Unit = synchronized {
    book.clear()
    detach()
  }

  // Removing waits for the thread of the listener, which takes the lock of the book, and never this.
  private def detach(): Unit = {
    if (attached && !sc.isStopped) sc.removeSparkListener(listener)
    attached = false
  }

  def begin(dataflow: String, lower: String): Unit = book.begin(dataflow, Antichain.parse(lower))

  def end(dataflow: String, frontier: String): Unit = book.end(dataflow, Antichain.parse(frontier))

  /** Null while no step has begun; the empty text is the empty frontier. */
  def frontier(dataflow: String): String =
    if (healthy()) book.frontier(dataflow).fold[String](null)(_.toString) else null

  /** Counts and running jobs, as JSON; null once broken. */
  def counts(dataflow: String): String = told(book.counts(dataflow))

  /** The same, and what each operator and each of the last labels took; null once broken. */
  def snapshot(dataflow: String): String = told(book.snapshot(dataflow))

  // What is looked at is Spark's own: another version may lack a class of it, or what that needs.
  private def tried[T](what: => T): Option[T] =
    try Some(what)
    catch { case NonFatal(_) | _: LinkageError => None }

  private def told(text: => Option[String]): String =
    if (!healthy()) null
    else {
      if (!book.isIdle) local.foreach(tasks => tried(tasks.sample(listener.running(_, _, _))))
      text.orNull
    }

  /** Give the jobs of this thread a label, or take it away with null; the label before. One that
    * the user has described keeps that description. */
  def label(text: String): String = {
    val before = sc.getLocalProperty(Bridge.Label)
    val description = sc.getLocalProperty(Bridge.Description)
    if (description == null || description == described(before)) {
      sc.setLocalProperty(Bridge.Description, described(text))
    }
    sc.setLocalProperty(Bridge.Label, text)
    before
  }

  private def described(text: String): String =
    if (text == null) null else pysparkdiff.Label.parse(text).description
}

object Bridge {
  val Version = 1

  /** The local property of a job that is ours. */
  val Label = "spark.pyspark_diff.job"

  private val Description = "spark.job.description"
}

package pysparkdiff

import scala.util.control.NonFatal

import org.apache.spark.SparkContext

/** The public entry: reports the progress of the dataflows of one SparkContext.
  *
  * {{{
  *   a dataflow is registered  ⟺  the listener is attached        nothing outlives the SparkContext
  *   frontier(d)  ≤  the argument of the last `begin` or `end` of d    never ahead of a commit
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

  /** The version of the protocol between this class and Python. */
  def version(): Int = Bridge.Version

  def scalaVersion(): String = scala.util.Properties.versionNumberString

  /** Whether the counts are reliable: false after the first fault of the listener. */
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

  // Removal waits for the listener's thread. That thread locks the book, but never this object.
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

  /** As `counts`, with the counts of each operator and of the last labels; null once broken. */
  def snapshot(dataflow: String): String = told(book.snapshot(dataflow))

  // Reads of Spark's internals: another version of Spark may lack a class or its dependencies.
  private def tried[T](what: => T): Option[T] =
    try Some(what)
    catch { case NonFatal(_) | _: LinkageError => None }

  // Sample the running tasks before the book is read.
  private def told(text: => Option[String]): String =
    if (!healthy()) null
    else {
      if (!book.isIdle) local.foreach(tasks => tried(tasks.sample(listener.running(_, _, _))))
      text.orNull
    }

  /** Set the label of this thread's jobs, or remove it with null. Returns the previous label. A
    * description that the user has set stays. */
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

  /** The local property that contains the label of a job. */
  val Label = "spark.pyspark_diff.job"

  private val Description = "spark.job.description"
}

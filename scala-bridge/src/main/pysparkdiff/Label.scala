package pysparkdiff

import java.net.URLDecoder
import java.nio.charset.StandardCharsets.UTF_8

/** The label of a job, which `pyspark_diff/spark/bridge.py` writes into a local property.
  *
  * {{{  dataflow|operator|iteration|lower|upper   as in   flow-1|count%20of%20edges|0,3|5|9  }}}
  *
  * Names are URL-encoded. A missing part is empty.
  */
final case class Label(
    dataflow: String,
    operator: String,
    iteration: Vector[Long],
    lower: Option[Long],
    upper: Option[Long])(val text: String) {

  /** The operator, still URL-encoded. */
  def escapedOperator: String = text.split('|')(1)

  /** For people, in Spark's UI. */
  def description: String = {
    val at = if (iteration.isEmpty) "" else iteration.mkString(" at iteration ", ", ", "")
    val from = lower.fold("")(t => s" from time $t")
    s"pyspark_diff: $operator$at$from${upper.fold("")(t => s" to before $t")}"
  }
}

object Label {
  def parse(text: String): Label = text.split("\\|", -1) match {
    // The JSON reports contain the text unescaped.
    case Array(dataflow, operator, iteration, lower, upper) if text.forall(plain) =>
      Label(
        URLDecoder.decode(dataflow, UTF_8),
        URLDecoder.decode(operator, UTF_8),
        Time.parse(iteration).coordinates,
        lower.toLongOption,
        upper.toLongOption)(text)
    case _ => throw new IllegalArgumentException(s"no label of a job: $text")
  }

  private def plain(c: Char): Boolean = c > ' ' && c <= '~' && c != '"' && c != '\\'
}

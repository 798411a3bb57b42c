package pysparkdiff

import java.util.{Map => JavaMap}

import scala.jdk.CollectionConverters._

import org.apache.spark.SparkEnv
import org.apache.spark.util.AccumulatorV2

/** The tasks that run in this process, as all do in local mode: what they have moved so far.
  *
  * Executors tell of it in heartbeats, every ten seconds. A shorter interval is no way: it is also
  * the time in which Spark has to answer them, and log files fill with what came too late. Spark has
  * no public way to the tasks, so a version of it that is built otherwise has none, which is no
  * fault: then there are heartbeats.
  */
final class LocalTasks {

  private val running = {
    val endpoints = call(call(call(SparkEnv.get, "rpcEnv"), "dispatcher"), "endpointRefs")
    val local = endpoints.asInstanceOf[JavaMap[AnyRef, AnyRef]].keySet.asScala
      .find(_.getClass.getSimpleName == "LocalEndpoint")
    local.map(endpoint => call(call(endpoint, "executor"), "runningTasks"))
      .fold(Map.empty[AnyRef, AnyRef].asJava)(_.asInstanceOf[JavaMap[AnyRef, AnyRef]])
  }

  /** Stage, attempt, and what the metrics of the attempt say. */
  def sample(tell: (Int, Long, Iterable[(String, Any)]) => Unit): Unit =
    for ((id, runner) <- running.asScala; task <- Option(call(runner, "task"))) {
      val told = call(call(task, "metrics"), "accumulators").asInstanceOf[Seq[AccumulatorV2[_, _]]]
      tell(
        call(task, "stageId").asInstanceOf[Int],
        id.asInstanceOf[Long],
        told.flatMap(one => one.name.map(_ -> one.value)))
    }

  // The compiler puts the name of the class in front of one that a closure uses. Where a class has
  // methods of types that are not there, none of them can be listed, and its fields are asked.
  private def call(on: AnyRef, name: String): AnyRef = {
    def isCalled(found: String) = found == name || found.endsWith("$$" + name)
    def classes =
      Iterator.iterate[Class[_]](on.getClass)(_.getSuperclass).takeWhile(_ != null)
    def none = throw new NoSuchMethodException(s"${on.getClass.getName}.$name")
    try {
      val method = classes.flatMap(_.getDeclaredMethods.iterator)
        .find(m => m.getParameterCount == 0 && isCalled(m.getName)).getOrElse(none)
      method.setAccessible(true)
      method.invoke(on)
    } catch {
      case _: LinkageError =>
        val field = classes.flatMap(_.getDeclaredFields.iterator)
          .find(f => isCalled(f.getName)).getOrElse(none)
        field.setAccessible(true)
        field.get(on)
    }
  }
}

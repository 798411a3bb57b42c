package pysparkdiff

import java.util.{Map => JavaMap}

import scala.jdk.CollectionConverters._

import org.apache.spark.SparkEnv
import org.apache.spark.util.AccumulatorV2

/** Reads the metrics of the tasks that run in this process. In local mode these are all tasks.
  *
  * Executors report metrics in heartbeats, every ten seconds. A shorter interval does not help:
  * Spark must also answer each heartbeat within it, and late answers fill the log. Spark has no
  * public access to running tasks. If another version has other internals, only heartbeats report.
  */
final class LocalTasks {

  private val running = {
    val endpoints = call(call(call(SparkEnv.get, "rpcEnv"), "dispatcher"), "endpointRefs")
    val local = endpoints.asInstanceOf[JavaMap[AnyRef, AnyRef]].keySet.asScala
      .find(_.getClass.getSimpleName == "LocalEndpoint")
    local.map(endpoint => call(call(endpoint, "executor"), "runningTasks"))
      .fold(Map.empty[AnyRef, AnyRef].asJava)(_.asInstanceOf[JavaMap[AnyRef, AnyRef]])
  }

  /** Call `tell` with the stage, the attempt and the metrics of each running attempt. */
  def sample(tell: (Int, Long, Iterable[(String, Any)]) => Unit): Unit =
    for ((id, runner) <- running.asScala; task <- Option(call(runner, "task"))) {
      val told = call(call(task, "metrics"), "accumulators").asInstanceOf[Seq[AccumulatorV2[_, _]]]
      tell(
        call(task, "stageId").asInstanceOf[Int],
        id.asInstanceOf[Long],
        told.flatMap(one => one.name.map(_ -> one.value)))
    }

  // The compiler prefixes the class name to a member that a closure uses. If the type of a method
  // is missing, Java cannot list any method of the class, so the fields are read.
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

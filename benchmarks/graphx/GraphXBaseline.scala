package benchmarks

import org.apache.spark.graphx.{Edge, EdgeDirection, Graph, PartitionStrategy, VertexId}
import org.apache.spark.graphx.lib.{LabelPropagation, ShortestPaths}
import org.apache.spark.rdd.RDD
import org.apache.spark.sql.{DataFrame, SparkSession}
import org.apache.spark.storage.StorageLevel.MEMORY_AND_DISK

/**
 * GraphX, as a baseline: called from Python, and compiled when a benchmark asks for it.
 *
 * Each function gives seconds to build the graph, seconds to compute on it, and two sums that tell
 * whether the answer is right.
 */
object GraphXBaseline {

  /** Distances from a root; the sums are the number of nodes reached, and of their distances. */
  def bfs(path: String, root: Long): Array[Double] = {
    val (build, graph) = timed(read(edges(path)))
    val (run, sums) = timed {
      val start = graph.mapVertices((node, _) => if (node == root) 0 else Int.MaxValue)
      val found = start.pregel(Int.MaxValue, activeDirection = EdgeDirection.Out)(
        (_, distance, message) => math.min(distance, message),
        edge =>
          if (edge.srcAttr != Int.MaxValue && edge.srcAttr + 1 < edge.dstAttr)
            Iterator((edge.dstId, edge.srcAttr + 1))
          else Iterator.empty,
        (a, b) => math.min(a, b))
      found.vertices.values.filter(_ != Int.MaxValue)
        .aggregate((0L, 0L))((sum, distance) => (sum._1 + 1, sum._2 + distance), add)
    }
    graph.unpersist()
    Array(build, run, sums._1.toDouble, sums._2.toDouble)
  }

  /**
   * Edges of the k-core of a simple undirected graph; the sums are the number of edges, and of
   * source plus target.
   */
  def kCore(path: String, k: Int): Array[Double] = {
    val simple = edges(path).where("src != dst")
      .selectExpr("least(src, dst) src", "greatest(src, dst) dst").distinct()
    val (build, graph) = timed(read(simple))
    val (run, sums) = timed {
      var core = graph
      var before = -1L
      var now = graph.edges.count()
      while (now != before) {
        val smaller = core.outerJoinVertices(core.degrees)((_, _, ends) => ends.getOrElse(0))
          .subgraph(vpred = (_, ends) => ends >= k)
          .cache()
        before = now
        now = smaller.edges.count()
        smaller.vertices.count()
        core.unpersist()
        core = smaller
      }
      core.edges.map(edge => edge.srcId + edge.dstId)
        .aggregate((0L, 0L))((sum, ends) => (sum._1 + 1, sum._2 + ends), add)
    }
    graph.unpersist()
    Array(build, run, sums._1.toDouble, sums._2.toDouble)
  }

  /** Smallest nodes of components; the sums are the number of nodes, and of what each has. */
  def components(path: String, unused: Int): Array[Double] =
    sums(read(edges(path)))(_.connectedComponents().vertices.values)

  /** Page ranks after some rounds; the sums are the number of nodes, and of rank times node. */
  def pageRank(path: String, rounds: Int): Array[Double] = {
    val (build, graph) = timed(read(edges(path)))
    val (run, sums) = timed {
      graph.staticPageRank(rounds).vertices
        .map { case (node, rank) => (1.0, rank * node) }
        .fold((0.0, 0.0))((a, b) => (a._1 + b._1, a._2 + b._2))
    }
    graph.unpersist()
    Array(build, run, sums._1, sums._2)
  }

  /** Triangles of each node; the sums are the number of nodes, and of their triangles. */
  def triangles(path: String, unused: Int): Array[Double] =
    sums(read(edges(path)).partitionBy(PartitionStrategy.EdgePartition2D).cache())(
      _.triangleCount().vertices.values.map(_.toLong))

  /** Distances to a landmark; the sums are the number of nodes that reach it, and of distances. */
  def shortestPaths(path: String, landmark: Long): Array[Double] =
    sums(read(edges(path)))(
      ShortestPaths.run(_, Seq[VertexId](landmark)).vertices.values
        .flatMap(_.get(landmark)).map(_.toLong))

  /** Labels after some rounds; the first sum is the number of nodes. Ties are broken at random. */
  def labelPropagation(path: String, rounds: Int): Array[Double] =
    sums(read(edges(path)))(LabelPropagation.run(_, rounds).vertices.values)

  /** The seconds of a graph and of an algorithm on it, and the number and sum of its values. */
  private def sums(
      built: => Graph[Int, Byte])(algorithm: Graph[Int, Byte] => RDD[Long]): Array[Double] = {
    val (build, graph) = timed(built)
    val (run, sums) = timed {
      algorithm(graph).aggregate((0L, 0L))((sum, value) => (sum._1 + 1, sum._2 + value), add)
    }
    graph.unpersist()
    Array(build, run, sums._1.toDouble, sums._2.toDouble)
  }

  private def edges(path: String): DataFrame =
    SparkSession.active.read.parquet(path).select("src", "dst")

  private def read(frame: DataFrame): Graph[Int, Byte] = {
    val edges = frame.rdd.map(row => Edge(row.getLong(0), row.getLong(1), 0.toByte))
    val graph = Graph.fromEdges(edges, 0, MEMORY_AND_DISK, MEMORY_AND_DISK)
    graph.vertices.count()
    graph.edges.count()
    graph
  }

  private def add(a: (Long, Long), b: (Long, Long)): (Long, Long) = (a._1 + b._1, a._2 + b._2)

  private def timed[T](action: => T): (Double, T) = {
    val started = System.nanoTime()
    val result = action
    ((System.nanoTime() - started) / 1e9, result)
  }
}

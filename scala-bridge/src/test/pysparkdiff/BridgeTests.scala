package pysparkdiff

import java.io.File

import scala.jdk.CollectionConverters._
import scala.util.Random

import com.fasterxml.jackson.databind.{JsonNode, ObjectMapper}

import org.apache.spark.scheduler._

/** The tests of the bridge that need no Spark: `java … pysparkdiff.BridgeTests algebra_cases.json`.
  *
  * Runs all tests, prints the failures, and exits with their number.
  */
object BridgeTests {

  private val json = new ObjectMapper

  def main(arguments: Array[String]): Unit = {
    val cases = json.readTree(new File(arguments(0)))
    val failed = (algebra(cases) ++ laws).count { case (name, test) =>
      val fault = try { test(); None } catch { case fault: Throwable => Some(fault) }
      println(s"${if (fault.isEmpty) "ok    " else "FAILED"} $name")
      fault.foreach(_.printStackTrace())
      fault.nonEmpty
    }
    System.exit(failed)
  }

  private def check(right: Boolean, what: => Any): Unit =
    if (!right) throw new AssertionError(what.toString)

  private def same(one: Any, other: Any, what: => Any): Unit =
    check(one == other, s"$one is not $other: $what")

  // The algebra, with the cases that Python also runs

  private def time(node: JsonNode): Time = Time(node.asScala.map(_.longValue).toVector)
  private def times(node: JsonNode): Vector[Time] = node.asScala.map(time).toVector

  private def algebra(cases: JsonNode): Seq[(String, () => Unit)] = Seq(
    "times" -> { c: JsonNode =>
      val (a, b) = (time(c.get("a")), time(c.get("b")))
      same(a.lessEqual(b), c.get("less_equal").booleanValue, c)
      for ((s, t) <- Seq(a -> b, b -> a)) {
        same(s.join(t), time(c.get("join")), c)
        same(s.meet(t), time(c.get("meet")), c)
      }
      same(Time.parse(a.toString), a, c)
    },
    "moves" -> { c: JsonNode =>
      val t = time(c.get("t"))
      same(t.enter, time(c.get("enter")), c)
      same(t.leave, time(c.get("leave")), c)
      same(t.step, time(c.get("step")), c)
    },
    "antichains" -> { c: JsonNode =>
      val frontier = Antichain(times(c.get("times")))
      val t = time(c.get("t"))
      same(frontier.elements, times(c.get("elements")), c)
      same(frontier.lessEqual(t), c.get("less_equal").booleanValue, c)
      same(frontier.lessThan(t), c.get("less_than").booleanValue, c)
      same(Antichain.parse(frontier.toString), frontier, c)
    },
    "frontiers" -> { c: JsonNode =>
      val (f, g) = (Antichain(times(c.get("f"))), Antichain(times(c.get("g"))))
      same(f.precedes(g), c.get("precedes").booleanValue, c)
      for ((h, k) <- Seq(f -> g, g -> f)) {
        same(h.meet(k).elements, times(c.get("meet")), c)
        same(h.join(k).elements, times(c.get("join")), c)
      }
    },
    "outstanding" -> { c: JsonNode =>
      val outstanding = new OutstandingTimes
      for (one <- c.asScala) {
        val told = outstanding.update(
          one.get("changes").asScala.map(pair => time(pair.get(0)) -> pair.get(1).longValue))
        same(outstanding.frontier.elements, times(one.get("frontier")), c)
        same(told, times(one.get("gone")).map(_ -> -1L) ++ times(one.get("come")).map(_ -> 1L), c)
      }
    },
    "closures" -> { c: JsonNode =>
      val added = times(c.get("new"))
      val all = times(c.get("recorded")) ++ added
      var found = added.toSet
      var more = found
      while (more.nonEmpty) {
        more = (for (a <- found; b <- all) yield a.join(b)) -- found
        found ++= more
      }
      same(found, times(c.get("due")).toSet, c)
    }
  ).map { case (name, test) => s"cases: $name" -> { () => cases.get(name).asScala.foreach(test) } }

  // The laws of the book

  private def told(book: JobBook, flow: String): JsonNode = json.readTree(book.snapshot(flow).get)
  private def numbers(node: JsonNode): Vector[Long] = node.asScala.map(_.longValue).toVector

  private def laws: Seq[(String, () => Unit)] = Seq(
    "counts never go back, whatever happens" -> { () => (1 to 150).foreach(interleaving) },
    "a task counts once" -> once _,
    "what is skipped is done with the stage that needed it" -> skipped _,
    "the frontier is that of commits" -> frontier _,
    "a label is what Python wrote" -> labels _,
    "memory is bounded" -> memory _,
    "a fault ends the hearing, and nothing else" -> fault _
  )

  /** Spark's events in any order, doubled, late and lost. The law holds after each event. */
  private def interleaving(seed: Int): Unit = {
    val random = new Random(seed)
    var now = 0L
    val book = new JobBook(() => { now += random.nextInt(1000000); now })
    Seq("f", "g").foreach(book.register)
    var before = Map.empty[String, Vector[Long]]
    var committed = 0L
    val lost = random.nextInt(3) == 0

    def look(): Unit = for (flow <- Seq("f", "g")) {
      val snapshot = told(book, flow)
      val accounts = (flow -> numbers(snapshot.get("counts"))) +:
        snapshot.get("operators").properties.asScala.toSeq
          .map(one => s"$flow ${one.getKey}" -> numbers(one.getValue))
      for ((name, counts) <- accounts) {
        val old = before.getOrElse(name, counts.map(_ => 0L))
        check(old.zip(counts).forall { case (a, b) => a <= b }, s"$seed: $name $old $counts")
        check(counts(0) >= counts(1) && counts(2) >= counts(3), s"$seed: $name $counts")
        check(counts(4) >= counts(5) && counts(5) >= counts(6), s"$seed: $name $counts")
        before += name -> counts
      }
      for (one <- snapshot.get("running").asScala) {
        check(one.get(1).longValue <= one.get(2).longValue, s"$seed: $one")
      }
      for (held <- book.frontier(flow); t <- held.elements) {
        check(t.coordinates.head <= committed, s"$seed: $held is ahead of $committed")
      }
    }

    /** The task events of a stage: attempts fail, are repeated, or race. */
    def attempts(stage: Int, tasks: Int): Seq[() => Unit] = for {
      partition <- 0 until tasks
      attempt <- 0 to random.nextInt(3)
      id = 1000L * stage + 10 * partition + attempt
      event <- Seq[() => Unit](
        () => book.taskStarted(stage, partition, id),
        () => book.taskMoved(stage, partition, random.nextInt(100), random.nextInt(100)),
        () => book.taskEnded(stage, partition, id, random.nextBoolean()))
    } yield event

    val jobs = for (job <- 0 to 4) yield {
      val flow = if (random.nextInt(3) == 0) "g" else "f"
      val tasks = Seq.fill(3)(random.nextInt(4) + 1)
      // The job shares its first stage with the job before, as for a reused shuffle.
      val stages = tasks.zipWithIndex.map { case (n, i) =>
        JobBook.StageOfJob(10 * job - (if (i == 0) 10 else 0) + i + 20, n, if (i > 0) Seq(10 * job + i + 19) else Nil)
      }
      val label = s"$flow|op${job % 2}|${random.nextInt(3)}|${committed + random.nextInt(2)}|"
      val middle = stages.flatMap { stage =>
        Seq(() => book.stageSubmitted(stage.id)) ++ attempts(stage.id, stage.tasks) ++
          Seq(() => book.stageCompleted(stage.id, random.nextBoolean())) ++
          (if (random.nextBoolean()) attempts(stage.id, stage.tasks) else Nil)
      }
      Seq(() => book.jobStarted(job, label, stages)) ++
        (if (random.nextBoolean()) random.shuffle(middle) else middle) ++
        Seq(() => book.jobEnded(job)) ++ random.shuffle(middle).take(3)
    }
    val steps = (1 to 3).flatMap { step =>
      val failed = random.nextBoolean()
      Seq[() => Unit](
        () => Seq("f", "g").foreach(book.begin(_, Antichain(Seq(Time(Vector(committed)))))),
        () => {
          if (!failed) committed += 1
          Seq("f", "g").foreach(book.end(_, Antichain(Seq(Time(Vector(committed))))))
        })
    }
    // Each queue keeps its order. The order between queues is random.
    var queues = (steps +: jobs).map(_.toList)
    while (queues.nonEmpty) {
      val i = random.nextInt(queues.size)
      if (!lost || random.nextInt(10) > 0 || i == 0 && queues.size > jobs.size) queues(i).head()
      queues = queues.updated(i, queues(i).tail).filter(_.nonEmpty)
      look()
    }
    jobs.indices.foreach(book.jobEnded)
    look()
    for (flow <- Seq("f", "g"); c = before(flow)) {
      check(c(0) == c(1) && c(2) == c(3) && c(4) == c(5) && c(5) == c(6), s"$seed: not done $c")
    }
    check(book.isIdle && !(0 to 100).exists(book.knows), s"$seed: something is left")
  }

  private def once(): Unit = {
    var now = 0L
    val book = new JobBook(() => now)
    book.register("f")
    book.jobStarted(1, "f|op|||", Seq(JobBook.StageOfJob(7, 2, Nil)))
    book.taskStarted(7, 0, 100)
    book.taskMoved(7, 0, 10, 1000)
    now = 5000000
    book.taskEnded(7, 0, 100, succeeded = false)
    book.taskStarted(7, 0, 101)
    book.taskStarted(7, 0, 102)
    book.taskMoved(7, 0, 4, 400)
    book.taskMoved(7, 0, 12, 1200)
    now = 8000000
    same(numbers(told(book, "f").get("counts")), Seq(1, 0, 1, 0, 2, 1, 0, 12, 1200, 11), "running")
    book.taskEnded(7, 0, 101, succeeded = true)
    book.taskEnded(7, 0, 102, succeeded = true)
    same(numbers(told(book, "f").get("counts")), Seq(1, 0, 1, 0, 2, 1, 1, 12, 1200, 11), "tried")
    same(told(book, "f").get("running").toString, """[["f|op|||",1,2]]""", "running")
    book.taskStarted(7, 1, 103)
    now = 9000000
    book.jobEnded(1)
    book.taskMoved(7, 0, 99, 9900)
    same(numbers(told(book, "f").get("counts")), Seq(1, 1, 1, 1, 2, 2, 2, 12, 1200, 12), "over")
    book.jobStarted(2, "other|op|||", Seq(JobBook.StageOfJob(8, 2, Nil)))
    same(book.knows(8), false, "a dataflow that is not registered")
  }

  private def skipped(): Unit = {
    val book = new JobBook
    book.register("f")
    val stages = Seq(1 -> Nil, 2 -> Seq(1), 3 -> Seq(2), 4 -> Nil)
    book.jobStarted(1, "f|op|||", stages.map { case (id, up) => JobBook.StageOfJob(id, 5, up) })
    book.stageSubmitted(3)
    same(numbers(told(book, "f").get("counts")), Seq(1, 0, 4, 2, 20, 10, 10, 0, 0, 0), "skipped")
  }

  private def frontier(): Unit = {
    val book = new JobBook
    def now: Option[String] = book.frontier("f").map(_.toString)
    book.register("f")
    same(now, None, "before the first step")
    book.begin("f", Antichain.parse("5"))
    book.jobStarted(1, "f|op|0,3|5|9", Nil)
    book.jobStarted(2, "f|op||7|9", Nil)
    same(now, Some("5"), "in a step")
    book.end("f", Antichain.parse("5"))
    same(now, Some("5"), "after a step that failed")
    book.begin("f", Antichain.parse("5"))
    book.end("f", Antichain.parse("9"))
    book.jobStarted(3, "f|op||5|9", Nil)
    same(now, Some("9"), "an event that comes late")
    book.begin("f", Antichain.parse("11"))
    same(now, Some("9"), "a step that says more than was committed")
    book.end("f", Antichain.empty)
    same(now, Some(""), "complete")
    book.forget("f")
    same(now, None, "forgotten")
    book.register("f")
    book.begin("f", Antichain.parse("1,4;2,3"))
    book.jobStarted(4, "f|op||1|", Nil)
    same(now, Some("1,4;2,3"), "times of two coordinates")
  }

  private def labels(): Unit = {
    val label = Label.parse("a%7Cb|count%20of%20%22x%22|0,3|-5|")
    same(label, Label("a|b", "count of \"x\"", Vector(0, 3), Some(-5), None)(""), "parts")
    same(label.description, "pyspark_diff: count of \"x\" at iteration 0, 3 from time -5", "text")
    for (wrong <- Seq("", "a|b", "a|b|x||", "a|b|||c|d", "a\"|b|||")) {
      val refused = try { Label.parse(wrong); false } catch { case _: IllegalArgumentException => true }
      check(refused, wrong)
    }
  }

  private def memory(): Unit = {
    val book = new JobBook
    book.register("f")
    for (job <- 1 to 5000) {
      book.begin("f", Antichain.parse(job.toString))
      book.jobStarted(job, s"f|op|$job|$job|", Seq(JobBook.StageOfJob(job, 1, Nil)))
      // Every second job loses its end event.
      if (job % 2 == 0) book.jobEnded(job)
      book.end("f", Antichain.parse((job + 1).toString))
    }
    book.begin("f", Antichain.parse("6000"))
    same(told(book, "f").get("labels").size, JobBook.MostLabels, "labels")
    check(book.isIdle && !(1 to 5000).exists(book.knows), "stages are kept")
    same(numbers(told(book, "f").get("counts")).take(2), Seq(5000, 5000), "counts")
    book.forget("f")
    check(book.isEmpty, "a dataflow is kept")
  }

  private def fault(): Unit = {
    val book = new JobBook
    val listener = new ProgressListener(book)
    book.register("f")
    listener.onJobEnd(SparkListenerJobEnd(1, 0, JobSucceeded))
    check(listener.healthy, "an event of a job that is not ours")
    def started(job: Int, label: String): SparkListenerJobStart = {
      val properties = new java.util.Properties
      if (label != null) properties.setProperty("spark.pyspark_diff.job", label)
      SparkListenerJobStart(job, 0, Nil, properties)
    }
    listener.onJobStart(SparkListenerJobStart(1, 0, Nil, null))
    listener.onJobStart(started(1, null))
    same(numbers(told(book, "f").get("counts")).head, 0L, "jobs of others")
    listener.onJobStart(started(1, "f|op|||"))
    same(numbers(told(book, "f").get("counts")).head, 1L, "a job of ours")
    listener.onTaskStart(null)
    check(!listener.healthy, "a fault was not seen")
    listener.onJobStart(started(2, "f|op|||"))
    same(numbers(told(book, "f").get("counts")).head, 1L, "after a fault")
  }
}

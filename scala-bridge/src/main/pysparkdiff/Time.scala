package pysparkdiff

/** A product time: the coordinates of the dataflow's time, then of each loop, outermost first.
  *
  * {{{
  *   (a1, …, an) ≤ (b1, …, bn)  ⟺  ai ≤ bi for every i                  `lessEqual`
  *   a ≤ c and b ≤ c            ⟺  join(a, b) ≤ c                       least upper bound
  *   c ≤ a and c ≤ b            ⟺  c ≤ meet(a, b)                       greatest lower bound
  *   leave(enter(t)) = t,  t ≤ step(t)
  * }}}
  *
  * The laws are those of `pyspark_diff/times.py`; all implementations run the same cases. Times of
  * different widths do not compare.
  */
final case class Time(coordinates: Vector[Long]) {

  def width: Int = coordinates.size

  /** Whether this is at most `that` in the partial order; false also when they are incomparable. */
  def lessEqual(that: Time): Boolean = paired(that).forall { case (a, b) => a <= b }

  def join(that: Time): Time = Time(paired(that).map { case (a, b) => math.max(a, b) })

  def meet(that: Time): Time = Time(paired(that).map { case (a, b) => math.min(a, b) })

  /** This time inside one more loop, at its first iteration 0. */
  def enter: Time = Time(coordinates :+ 0L)

  /** This time outside its innermost loop. */
  def leave: Time = Time(coordinates.init)

  /** This time after the feedback edge of its innermost loop: one iteration later. */
  def step: Time = Time(coordinates.init :+ Math.addExact(coordinates.last, 1L))

  override def toString: String = coordinates.mkString(",")

  private def paired(that: Time): Vector[(Long, Long)] = {
    require(width == that.width, s"the times ($this) and ($that) differ in width")
    coordinates.zip(that.coordinates)
  }
}

object Time {

  /** The inverse of `toString`; no text is the time without coordinates. */
  def parse(text: String): Time =
    Time(if (text.isEmpty) Vector.empty else text.split(",", -1).toVector.map(_.toLong))

  /** The lexicographic order, which respects the partial one. */
  val lexicographic: Ordering[Time] =
    Ordering.by[Time, Vector[Long]](_.coordinates)(Ordering.Implicits.seqOrdering[Vector, Long])
}

package pysparkdiff

/** A frontier: minimal, mutually incomparable times. Empty means complete.
  *
  * {{{
  *   t is beyond F     ⟺  f ≤ t for some f in F                         `lessEqual`
  *   F ≤ G             ⟺  every g in G is beyond F                      `precedes`
  *   H ≤ F and H ≤ G   ⟺  H ≤ F.meet(G)                                 greatest lower bound
  *   F ≤ H and G ≤ H   ⟺  F.join(G) ≤ H                                 least upper bound
  * }}}
  *
  * Immutable. Elements are in lexicographic order, so equal antichains have equal elements.
  */
final class Antichain private (val elements: Vector[Time]) {

  def isEmpty: Boolean = elements.isEmpty

  /** Adds `t` unless `t` is beyond this frontier, and drops the elements beyond `t`. */
  def insert(t: Time): Antichain =
    if (lessEqual(t)) this
    else new Antichain((elements.filterNot(t.lessEqual) :+ t).sorted(Time.lexicographic))

  /** Whether `t` is beyond this frontier. */
  def lessEqual(t: Time): Boolean = elements.exists(_.lessEqual(t))

  /** Whether some element is strictly less than `t`. */
  def lessThan(t: Time): Boolean = elements.exists(f => f.lessEqual(t) && f != t)

  def precedes(that: Antichain): Boolean = that.elements.forall(lessEqual)

  /** A time is beyond the meet if it is beyond `this` or `that`. */
  def meet(that: Antichain): Antichain = that.elements.foldLeft(this)(_ insert _)

  /** A time is beyond the join if it is beyond both `this` and `that`. */
  def join(that: Antichain): Antichain =
    Antichain(for (f <- elements; g <- that.elements) yield f.join(g))

  override def equals(other: Any): Boolean = other match {
    case that: Antichain => elements == that.elements
    case _ => false
  }

  override def hashCode: Int = elements.hashCode

  override def toString: String = elements.mkString(";")
}

object Antichain {

  val empty: Antichain = new Antichain(Vector.empty)

  def apply(times: Iterable[Time]): Antichain = times.foldLeft(empty)(_ insert _)

  /** The inverse of `toString`; no text is the empty antichain. */
  def parse(text: String): Antichain =
    if (text.isEmpty) empty else apply(text.split(";", -1).toVector.map(Time.parse))
}

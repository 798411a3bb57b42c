package pysparkdiff

import scala.collection.mutable

/** Counts how often each time is outstanding, and keeps the frontier of the outstanding times.
  *
  * {{{
  *   net(t)    =  Σ changes of t                  of either sign, and in any order
  *   frontier  =  the minimal t with net(t) > 0
  *   frontier before + what `update` returns  =  frontier after
  * }}}
  *
  * A negative net, for example after a release that arrives before its hold, holds no time.
  * (timely-dataflow progress/frontier.rs, `MutableAntichain`.)
  */
final class OutstandingTimes {

  private val net = mutable.HashMap.empty[Time, Long]
  private var minimal = Antichain.empty

  def frontier: Antichain = minimal

  /** Apply changes. Returns the times that left (-1) and joined (1) the frontier. */
  def update(changes: Iterable[(Time, Long)]): Vector[(Time, Long)] = {
    for ((t, change) <- changes) {
      val now = net.getOrElse(t, 0L) + change
      if (now == 0) net.remove(t) else net(t) = now
    }
    val before = minimal
    minimal = Antichain(net.collect { case (t, n) if n > 0 => t })
    before.elements.diff(minimal.elements).map(_ -> -1L) ++
      minimal.elements.diff(before.elements).map(_ -> 1L)
  }
}

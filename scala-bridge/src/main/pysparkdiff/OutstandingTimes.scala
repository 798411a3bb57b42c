package pysparkdiff

import scala.collection.mutable

/** How often each time is outstanding, and the frontier of those times.
  *
  * {{{
  *   net(t)    =  Σ changes of t                  of either sign, and in any order
  *   frontier  =  the minimal t with net(t) > 0
  *   frontier before + what `update` returns  =  frontier after
  * }}}
  *
  * A net that is negative for a while, as when a release arrives before its hold, holds nothing.
  * (timely-dataflow progress/frontier.rs, `MutableAntichain`.)
  */
final class OutstandingTimes {

  private val net = mutable.HashMap.empty[Time, Long]
  private var minimal = Antichain.empty

  def frontier: Antichain = minimal

  /** Apply changes, and tell how the frontier changed: which times went (-1) and which came (1). */
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

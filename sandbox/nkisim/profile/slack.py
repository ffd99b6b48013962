"""How long each instruction could be late without the launch ending later.

Walks the dependences backwards over the schedule as it was: streams in order, DMA bandwidth as it
was granted.  An instruction on the critical path has no slack.
"""

from __future__ import annotations

import numpy as np

from nkisim.ir.program import IntColumn
from nkisim.profile.model import Profile
from nkisim.timing.dependence import AFTER_READER, KIND_BITS, KIND_MASK
from nkisim.timing.timeline import PS_PER_NS


def slack_ps(profile: Profile) -> IntColumn:
    """Return the slack of each entry of the timeline in picoseconds."""
    timeline, dependences = profile.timeline, profile.dependences
    count = len(timeline)
    if not count:
        return np.zeros(0, dtype=np.int64)
    starts, ends = timeline.start_ps.tolist(), timeline.end_ps.tolist()
    results = timeline.result_ps.tolist()
    streams = [dependences.access[form].stream for form in dependences.forms]
    is_dma = [dependences.access[form].is_dma for form in dependences.forms]
    semaphore = round(profile.machine.semaphore_ns * PS_PER_NS)
    end = max(results)
    slack = [end - result for result in results]
    edge_start, edges = dependences.edge_start, dependences.edges
    later: dict[int, int] = {}
    """By stream: the entry that follows."""
    causes = timeline.predecessor.tolist()
    for entry in np.argsort(timeline.start_ps, kind="stable")[::-1].tolist():
        stream, start = streams[entry], starts[entry]
        follower = later.get(stream)
        if follower is not None:
            # A copy leaves its stream when it is issued, other instructions when they end.
            free = starts[entry] if is_dma[entry] else ends[entry]
            room = slack[follower] + max(0, starts[follower] - free)
            slack[entry] = min(slack[entry], room)
        later[stream] = entry
        mine = slack[entry]
        if causes[entry] >= 0:
            # It started when this one let it: a queue, bandwidth or a port count as well.
            slack[causes[entry]] = min(slack[causes[entry]], mine)
        for edge in edges[edge_start[entry] : edge_start[entry + 1]]:
            other, kind = edge >> KIND_BITS, edge & KIND_MASK
            at = results[other]
            if not is_dma[other]:
                if kind == AFTER_READER:
                    at = ends[other]
                if streams[other] != stream:
                    at += semaphore
            slack[other] = min(slack[other], mine + max(0, start - at))
    return np.maximum(np.array(slack, dtype=np.int64), 0)

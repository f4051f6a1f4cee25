"""The smallest cut of a network between a source and a sink, by Dinic's algorithm (1970)."""

from __future__ import annotations

from collections import deque

SOURCE, SINK = 0, 1


class Network:
    """Vertices and directed edges with capacities, which are whole numbers. Vertices 0 and 1 are source and sink."""

    def __init__(self) -> None:
        self._from: list[list[int]] = [[], []]  # the edges of each vertex; edge e ^ 1 is edge e turned around
        self._to: list[int] = []
        self._room: list[int] = []

    def vertex(self) -> int:
        """Add a vertex."""
        self._from.append([])
        return len(self._from) - 1

    def edge(self, start: int, end: int, capacity: int) -> None:
        """Add an edge: a cut with `start` on the source's side and `end` on the sink's costs the capacity."""
        for at, target, room in ((start, end, capacity), (end, start, 0)):
            self._from[at].append(len(self._to))
            self._to.append(target)
            self._room.append(room)

    def sink_side(self) -> set[int]:
        """Return the vertices on the sink's side of a smallest cut, which are as few as can be."""
        while True:
            depths = self._depths(SOURCE)
            if SINK not in depths:
                break
            tried = [0] * len(self._from)
            while self._push(depths, tried):
                pass
        return set(self._depths(SINK, backwards=True))

    def _depths(self, start: int, backwards: bool = False) -> dict[int, int]:
        """Return how many edges with room away each vertex is; `backwards`: how many edges it is away from `start`."""
        depths, queue = {start: 0}, deque([start])
        while queue:
            at = queue.popleft()
            for edge in self._from[at]:
                target = self._to[edge]
                if target not in depths and self._room[edge ^ backwards]:
                    depths[target] = depths[at] + 1
                    queue.append(target)
        return depths

    def _push(self, depths: dict[int, int], tried: list[int]) -> int:
        """Push a flow along one shortest way and return it; 0 if there is none left."""
        path: list[int] = []
        at = SOURCE
        while at != SINK:
            while tried[at] < len(self._from[at]):
                edge = self._from[at][tried[at]]
                if self._room[edge] and depths.get(self._to[edge], -1) == depths[at] + 1:
                    break
                tried[at] += 1
            else:
                if not path:
                    return 0
                at = self._to[path.pop() ^ 1]
                tried[at] += 1
                continue
            path.append(edge)
            at = self._to[edge]
        flow = min(self._room[edge] for edge in path)
        for edge in path:
            self._room[edge] -= flow
            self._room[edge ^ 1] += flow
        return flow

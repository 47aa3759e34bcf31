"""Whether the operators of two modules are wired alike, and which parameters correspond."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from megacompile_passes.modules.wiring import Wiring


def correspondence(first: Wiring, second: Wiring) -> dict[str, str] | None:
    """Parameters of the first graph -> their counterparts in the second; None if the graphs are
    not isomorphic.

    Equal names are tried first: a symmetric graph has several isomorphisms, and modules of one
    class mean the one that keeps their names.
    """
    import networkx as nx
    from networkx.algorithms.isomorphism import DiGraphMatcher, categorical_edge_match

    if nx.faster_could_be_isomorphic(first, second) is False:
        return None
    edges = categorical_edge_match("position", None)

    def by_name(a: dict[str, Any], b: dict[str, Any]) -> bool:
        return bool(a["label"] == b["label"] and a.get("name") == b.get("name"))

    def by_label(a: dict[str, Any], b: dict[str, Any]) -> bool:
        return bool(a["label"] == b["label"])

    for nodes in (by_name, by_label):
        matcher = DiGraphMatcher(first, second, node_match=nodes, edge_match=edges)
        if matcher.is_isomorphic():
            pairs = matcher.mapping.items()
            return {a: b for a, b in pairs if first.nodes[a]["kind"] == "parameter"}
    return None


def fingerprint(graph: Wiring) -> str:
    """Equal for isomorphic graphs; almost never equal for others (Weisfeiler and Leman, 1968)."""
    import networkx as nx

    with warnings.catch_warnings():
        # Hashes changed between two releases of networkx; none outlives this run.
        warnings.filterwarnings("ignore", message="The hashes produced for", category=UserWarning)
        text: str = nx.weisfeiler_lehman_graph_hash(graph, node_attr="label", edge_attr="position")
    return text


def difference(first: Wiring, second: Wiring) -> str:
    """Why two graphs are no isomorphic ones, in words."""
    from collections import Counter

    def labels(graph: Wiring) -> Counter[str]:
        return Counter(data["label"] for _, data in graph.nodes(data=True))

    one, other = labels(first), labels(second)
    only = [*(one - other), *(other - one)]
    if not only:
        return "the same operators and parameters, wired in another way"
    return "only one of them has " + ", ".join(sorted(set(only))[:3])

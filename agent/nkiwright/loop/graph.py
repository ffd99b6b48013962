"""Wires the loop.  What a node does is in `nodes`."""

from __future__ import annotations

from typing import Any

from nkiwright.loop.nodes import Nodes
from nkiwright.loop.state import LineageState, LoopState


def build_graph(nodes: Nodes, checkpointer: Any | None = None) -> Any:
    """Return the compiled graph of one run.

    Args:
        nodes: The node functions, bound to a run's collaborators.
        checkpointer: A LangGraph saver, or None to keep state in memory.
    """
    from langgraph.graph import END, START, StateGraph
    from langgraph.types import Send

    lineage = StateGraph(LineageState)
    lineage.add_node("draft", nodes.draft)
    lineage.add_node("verify", nodes.verify)
    lineage.add_node("repair", nodes.repair)
    lineage.add_edge(START, "draft")
    lineage.add_conditional_edges("draft", nodes.after_writing, {"verify": "verify", "end": END})
    lineage.add_conditional_edges("verify", nodes.after_verifying, {"repair": "repair", "end": END})
    lineage.add_conditional_edges("repair", nodes.after_writing, {"verify": "verify", "end": END})
    lineage_graph = lineage.compile()

    async def run_lineage(state: LineageState) -> dict[str, Any]:
        result = await lineage_graph.ainvoke(state)
        return {"candidates": result.get("candidates", [])}

    def fan_out(state: LoopState) -> Any:
        if state.get("stopped"):
            return END
        first = state["drafted"] - state["width"]
        return [
            Send("lineage", {"lineage": first + i, "history": [], "candidates": []})
            for i in range(state["width"])
        ]

    graph = StateGraph(LoopState)
    graph.add_node("plan_round", nodes.plan_round)
    graph.add_node("lineage", run_lineage)
    graph.add_node("select", nodes.select)
    graph.add_edge(START, "plan_round")
    graph.add_conditional_edges("plan_round", fan_out, ["lineage", END])
    graph.add_edge("lineage", "select")
    graph.add_edge("select", "plan_round")
    return graph.compile(checkpointer=checkpointer)

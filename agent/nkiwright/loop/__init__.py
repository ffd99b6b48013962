"""The search loop as a LangGraph graph: draft → verify → repair* → select, in rounds."""

"""Where a recorded CPU rank's step went, from the raw JSON by the slowest way there is.

An independent check of `trace` and `measure`: the standard library's parser, and a sweep over every
edge of every event instead of interval arithmetic. Times are integer nanoseconds.
"""

import gzip
import json
from decimal import Decimal
from itertools import pairwise


def swept_step(path, step):
    """compute, communication, overlap, exposed, idle and span of one step, in ns."""
    events = _events(path)
    (window,) = [e for e in events if e["name"] == f"ProfilerStep#{step}"]
    workers = {e["tid"] for e in events if _works_for_gloo(e)}
    edges = {window["start"], window["end"]}
    for event in events:
        edges |= {event["start"], event["end"]}
    moments = sorted(edge for edge in edges if window["start"] <= edge <= window["end"])
    times = dict.fromkeys(("compute", "communication", "overlap", "exposed", "idle"), 0)
    waiting, now = sorted(events, key=lambda e: e["start"], reverse=True), []
    for start, end in pairwise(moments):
        while waiting and waiting[-1]["start"] <= start:
            now.append(waiting.pop())
        now = [e for e in now if e["end"] > start]
        communicates = any(e["name"].startswith("gloo:") for e in now)
        computes = any(_computes(thread, now) for thread in {e["tid"] for e in now} - workers)
        duration = end - start
        times["compute"] += computes * duration
        times["communication"] += communicates * duration
        times["overlap"] += (computes and communicates) * duration
        times["exposed"] += (communicates and not computes) * duration
        times["idle"] += (not computes and not communicates) * duration
    return {**times, "span": window["end"] - window["start"]}


def _events(path):
    content = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)
    complete = [event for event in content["traceEvents"] if event.get("ph") == "X"]
    for event in complete:
        event["start"] = int(Decimal(event["ts"]) * 1000)
        event["end"] = event["start"] + int(Decimal(event["dur"]) * 1000)
    return complete


def _works_for_gloo(event):
    return event["name"].startswith("gloo:") and event["name"] not in ("gloo:send", "gloo:recv")


def _computes(thread, now):
    """Whether a thread is inside an operator, and not inside anything for a collective."""
    names = [e["name"] for e in now if e["tid"] == thread and e.get("cat") == "cpu_op"]
    if any(name.startswith(("c10d::", "_c10d_functional::", "steptally::")) for name in names):
        return False
    return any(name != "PythonDispatchMode" and not name.startswith("profiler::") for name in names)

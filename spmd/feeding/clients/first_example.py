"""The fields of a pipeline's first example, computed by a process of its own where it is submitted.

In: a pipeline's texts. Out: its fields as they stand on the wire, or why they are not known.
Always holds: whatever the pipeline does there, it does to nobody else; it takes limited time.
"""

from __future__ import annotations

import sys
import time

from spmd.feeding.host.children import Channel, Child, end_together, ended_by, of_parent
from spmd.feeding.messages.wire import FIELDS
from spmd.feeding.results.loading import load_pipeline, what_failed
from spmd.feeding.results.memory_layout import dtype_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from spmd.data.pipelines import Pipeline

WITHIN_S = 20.0  # to start, to load its file, and to compute
LOOK_S = 0.1
WHY = 300  # characters


def first_example(texts: dict[str, Any]) -> tuple[list[dict[str, Any]] | None, str]:
    """Return the fields of a pipeline's first example, without the batch; or None, and why: its
    files may be on other machines."""
    child = Child("spmd.feeding.clients.first_example", dies_with_thread=True)
    try:
        child.channel.send(name=texts["own_name"], **texts)
        end = time.monotonic() + WITHIN_S
        while time.monotonic() < end:
            if not child.channel.wait_for(LOOK_S):
                continue
            if (said := child.channel.said()) is None:
                return None, f"the process that computed it {ended_by(child.wait(WITHIN_S))}"
            if said:
                return said[0]["gives"], said[0]["why"]
        return None, f"it takes more than {WITHIN_S:g} s"
    finally:
        end_together([child], LOOK_S)


def fields_of(pipeline: Pipeline) -> list[dict[str, Any]]:
    """Return the fields of a pipeline's first example as wire messages have them. Raises what
    computing it raises."""
    return [{"name": name, "shape": list(a.shape), "dtype": dtype_text(a.dtype)}
            for name, a in pipeline.first().items()]


def _computed(asked: dict[str, Any]) -> dict[str, Any]:
    try:
        gives = fields_of(load_pipeline(asked))
        if len(gives) > FIELDS or not all(
                isinstance(f["name"], str) and f["name"].replace(".", "_").isidentifier()
                for f in gives):
            return {"gives": None, "why": "it has fields that no feed can have"}
        return {"gives": gives, "why": ""}
    except BaseException as error:  # whatever the user's code raises: workers will say it again
        text, file, line = what_failed(error, asked["file"])
        text = " ".join(text.partition("\n  try:")[0].split())[:WHY]
        return {"gives": None, "why": f"{file}:{line}: {text}" if line else text}


def main(channel: Channel) -> None:
    while not (said := channel.said()):
        if said is None or not channel.wait_for(WITHIN_S):
            return
    channel.send(**_computed(said[0]))


if __name__ == "__main__":
    main(of_parent(sys.argv[1:])[0])

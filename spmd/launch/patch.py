"""`python -m spmd patch`: local programs, each an image with the index words of its own ranks.

In: the path of an image (or of a local program), an index and how many, sizes, scalars. Out: files.
Always holds: nothing of the image is executed; two local programs of one job differ in the index
words only.
"""

from __future__ import annotations

import os
import re

from codegen.errors import UsageError
from codegen.image import manifest as reader
from spmd.arguments import check_settings, patched_in, read, scalar_words, scalars_of
from spmd.files.npy import element_count
from spmd.files.whole import write_whole
from spmd.launch import loader, sizes
from spmd.launch.sizes import ranks_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from spmd.launch.processes import Processes


def command(options: argparse.Namespace, _: Processes) -> int:
    """Writes one local program, or all of a job. Raises what is wrong with image or options."""
    with loader.named(options.image):
        image = reader.read(loader.read(options.image), host=False)
    if options.all and (options.index is not None or options.ranks):
        raise UsageError("--all N already says the number of ranks",
                         remedy="--all N, or --index I --ranks N")
    if not options.all and options.index is None:
        raise UsageError("no index is given",
                         remedy="--index I --ranks N, or --all N")
    asked = options.all or options.ranks
    # A local program is patched anew: what is not said stays as it was.
    settings, own, count = patched_in(image, {}, {}, None)
    check_settings(image.manifest, options.set)
    scalars = scalars_of(image.manifest, {**settings, **read(options.set)})
    mesh = sizes.bind_mesh(
        image.manifest, asked or (None if options.mesh else count),
        options.mesh or ({} if asked else own), scalars,
    )
    ranks = element_count(mesh)
    if options.index is not None and options.index >= ranks:
        raise UsageError(f"there is no index {options.index} among {ranks_text(ranks)}",
                         expected=f"0 to {ranks - 1}")
    indices = range(ranks) if options.all else [options.index]
    words = scalar_words(image.manifest, scalars)
    for index in indices:
        path = _path(options, index, ranks)
        write_whole(path, reader.local_program(image, index, 1, list(mesh), words))
        print(f"{path}: rank {index} of {ranks}")
    return 0


def _path(options: argparse.Namespace, index: int, ranks: int) -> str:
    """Return the path of a local program: heat.img gives heat.3-of-16.img, beside it or in the
    folder asked for."""
    folder, base = os.path.split(options.image)
    stem = re.sub(r"\.\d+-of-\d+$", "", base.removesuffix(".img"))
    digits = len(str(ranks - 1))
    name = f"{stem}.{index:0{digits}}-of-{ranks}.img"
    if not options.output:
        return os.path.join(folder, name)
    if options.all or options.output.endswith("/") or os.path.isdir(options.output):
        os.makedirs(options.output, exist_ok=True)
        return os.path.join(options.output, name)
    return str(options.output)

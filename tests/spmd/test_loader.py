"""From bytes to machine code: what was hashed is what runs, and no image stands for another."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spmd
from codegen.compile import build
from codegen.errors import EnvironmentFault, ImageError
from spmd.engine import ffi
from spmd.launch import loader, routines, shared_constants


def program(factor: float) -> Any:
    """A program whose machine code differs in one constant only."""

    @spmd.program(mesh=("r",))
    def times() -> Any:
        x = spmd.input("x", (6,), np.float64, layout=("r",), default=lambda i: i * 1.0)

        @spmd.shard_map(out_layouts=("r",))
        def f(a: Any) -> Any:
            return a * factor

        return f(x)

    return times


@pytest.fixture(scope="module")
def images() -> tuple[bytes, bytes]:
    return build(program(2.0), {}), build(program(3.0), {})


def loaded(data: bytes, first: int = 0) -> loader.Loaded:
    return loader.check(data).load(first, 1, [4], [])


def test_two_images_at_once(images: tuple[bytes, bytes], tmp_path: Path) -> None:
    for name, data in zip("ab", images, strict=True):
        (tmp_path / name).write_bytes(data)
    twice, thrice = spmd.load(tmp_path / "a"), spmd.load(tmp_path / "b")
    with twice.open(ranks=2) as one, thrice.open(ranks=3) as other:
        np.testing.assert_array_equal(one(), np.arange(6) * 2.0)
        np.testing.assert_array_equal(other(), np.arange(6) * 3.0)
        np.testing.assert_array_equal(one(), np.arange(6) * 2.0)


def test_two_local_programs_of_one_image_at_once(images: tuple[bytes, bytes]) -> None:
    one, other = loaded(images[0], 1), loaded(images[0], 2)
    assert one.table != other.table
    one.close()
    other.close()


def test_a_rebuilt_image_under_the_same_path(images: tuple[bytes, bytes], tmp_path: Path) -> None:
    path = tmp_path / "x.img"
    for k in range(4):
        path.write_bytes(images[k % 2])
        result = spmd.load(path).run(ranks=2)
        np.testing.assert_array_equal(result, np.arange(6) * (2.0 + k % 2))


def test_a_file_replaced_after_the_check_has_no_effect(
    images: tuple[bytes, bytes], tmp_path: Path
) -> None:
    path = tmp_path / "x.img"
    path.write_bytes(images[0])
    image = spmd.load(path)
    path.write_bytes(b"something else")
    np.testing.assert_array_equal(image.run(ranks=2), np.arange(6) * 2.0)
    path.unlink()
    np.testing.assert_array_equal(image.run(ranks=3), np.arange(6) * 2.0)


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def is_image(number: str) -> bool:
    """Not so the number that the listing itself had: it is free again."""
    path = f"/proc/self/fd/{number}"
    return os.path.lexists(path) and "memfd:spmd-image" in os.readlink(path)


def mappings() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:spmd-image")


def test_what_is_loaded_cannot_be_written(images: tuple[bytes, bytes]) -> None:
    """A loaded image is sealed: no process can write it, by this descriptor or by a new one."""
    before = {n for n in descriptors() if is_image(n)}
    image = loaded(images[0])
    (mine,) = {n for n in descriptors() if is_image(n)} - before
    seals = fcntl.fcntl(int(mine), 1034)  # F_GET_SEALS
    assert seals & 0xF == 0xF  # seal, shrink, grow, write
    with pytest.raises(OSError):
        os.write(int(mine), b"x")
    with pytest.raises(OSError):
        os.ftruncate(int(mine), 10)
    again = os.open(f"/proc/self/fd/{mine}", os.O_RDWR)
    with pytest.raises(OSError):
        os.write(again, b"x")
    os.close(again)
    image.close()


def test_nothing_is_left_after_closing(images: tuple[bytes, bytes]) -> None:
    before, mapped = descriptors(), mappings()
    for k in range(20):
        loaded(images[k % 2]).close()
    assert descriptors() == before
    assert mappings() == mapped


def test_more_loads_than_descriptors(images: tuple[bytes, bytes]) -> None:
    """A process may load images all day: numbers of descriptors are not used up."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(map(int, descriptors()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 40, hard))
    try:
        checked = loader.check(images[0])
        for _ in range(100):
            checked.load(0, 1, [4], []).close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def mapped_at(address: Any) -> list[str]:
    """The row of /proc/self/maps of an address: range, permissions, offset, device, inode …"""
    at = int(ffi.cast("uintptr_t", address))
    for line in Path("/proc/self/maps").read_text().splitlines():
        low, high = (int(end, 16) for end in line.split()[0].split("-"))
        if low <= at < high:
            return line.split()
    raise AssertionError("nothing is mapped there")


TABLE = np.random.default_rng(0).normal(size=(128, 128))


def test_jobs_of_an_image_share_its_constants() -> None:
    """They lie in no loaded file, so that jobs of other sizes, whose index words differ, share
    them; and in pages that nobody can write."""

    @spmd.program(mesh=("r",))
    def product() -> Any:
        return spmd.input("x", (16, 128), layout=("r", None)) @ TABLE

    image, x = spmd.build(product), np.ones((16, 128))
    assert image.data.count(TABLE.tobytes()) == 1
    before = mappings(), descriptors()
    with image.open(ranks=1) as one, image.open(ranks=3) as other:
        for job in (one, other, one):
            np.testing.assert_allclose(job(x=x), x @ TABLE)
        first, second = (job._job.constants.address for job in (one, other))
        assert first == second
        assert bytes(ffi.buffer(first, TABLE.nbytes)) == TABLE.tobytes()
        assert mapped_at(first)[1] == "r--p"
        new = set(descriptors()) - set(before[1])  # other tests may have left images that are kept
        files = [os.stat(f"/proc/self/fd/{n}") for n in new if is_image(n)]
        blocks = {file.st_ino: file.st_blocks for file in files}
        assert 512 * sum(blocks.values()) < 2 * TABLE.nbytes  # both programs, and the constants
    assert (mappings(), descriptors()) == before


def test_processes_share_constants_that_hold_the_same(tmp_path: Path) -> None:
    before, content = descriptors(), memoryview(bytes(range(256)) * 32)
    (tmp_path / "file").write_bytes(content)
    first = shared_constants.constants_of("first", content)
    same = shared_constants.constants_of("same", content, first.path)
    other = shared_constants.constants_of("other", memoryview(content[::-1].tobytes()), first.path)
    unsealed = shared_constants.constants_of("unsealed", content, str(tmp_path / "file"))
    gone = shared_constants.constants_of("gone", content, "/proc/self/fd/9999")
    held = [first, same, other, unsealed, gone]
    inodes = [mapped_at(one.address)[4] for one in held]
    assert inodes[1] == inodes[0] and len(set(inodes)) == 4
    assert os.stat(tmp_path / "file").st_ino != int(inodes[3])
    assert other.pages[:] == content[::-1].tobytes() and gone.pages[:] == content
    again = shared_constants.constants_of("first", content)
    assert again is first
    first.close()
    assert again.pages[:] == content
    for one in held:
        one.close()
    assert descriptors() == before


def no_memory_file(*_: object, **__: object) -> int:
    raise OSError(1, "memory files are not allowed here")


def test_without_memory_files(
    images: tuple[bytes, bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without memfd_create, images are loaded from files that have no name once they are loaded."""
    monkeypatch.setattr(os, "memfd_create", no_memory_file)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    one, other = loaded(images[0]), loaded(images[1])
    assert one.table != other.table
    assert list(tmp_path.iterdir()) == []
    one.close()
    other.close()


def test_nowhere_to_load_from(images: tuple[bytes, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "memfd_create", no_memory_file)
    before = descriptors()
    monkeypatch.setattr(os, "open", no_memory_file)
    with pytest.raises(EnvironmentFault, match="cannot be loaded") as caught:
        loaded(images[0])
    assert caught.value.exit_code == 69
    assert "memory files are not allowed here" in caught.value.found
    assert descriptors() == before


def test_the_dynamic_linker_handing_back_another_image_is_noticed(
    images: tuple[bytes, bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Were a path used twice, dlopen would return what it loaded first."""
    first = tmp_path / "first.so"
    first.write_bytes(images[0])
    real = loader.lib

    class Linker:
        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def spmd_library_open(self, _: bytes) -> Any:
            return real.spmd_library_open(str(first).encode())

    monkeypatch.setattr(loader, "lib", Linker())
    with pytest.raises(EnvironmentFault, match="cannot be loaded") as caught:
        loaded(images[1])
    assert "another image" in caught.value.found


def test_a_directory_is_no_image(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="not an spmd image"):
        loader.open_file(str(tmp_path))


def test_routines_are_found_or_refused() -> None:
    """An image can only call routines of known libraries, and only those that the library has."""
    assert routines.address("openblas", "dgemm") != routines.address("openblas", "dpotrf")
    with pytest.raises(ImageError, match="calls fft of cuda, which this runtime does not know"):
        routines.address("cuda", "fft")
    with pytest.raises(EnvironmentFault, match="OpenBLAS has no routine dnothing"):
        routines.address("openblas", "dnothing")
    data = routines.address("numpy", "fft._pocketfft_umath.ifft Dd->D data")
    assert ffi.cast("char *", data)[0] == b"\0"  # the direction: not forward
    for name in ("fft._pocketfft_umath.fft dd->D", "fft._pocketfft_umath.dct dd->d", "tfft.f d->d"):
        with pytest.raises(EnvironmentFault, match=f"NumPy has no routine {name}"):
            routines.address("numpy", name)

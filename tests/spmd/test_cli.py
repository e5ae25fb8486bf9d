"""The command line without a job: usage, and what is refused before anything starts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import spmd
from spmd import cli
from tests.conftest import run


def refused(capsys: pytest.CaptureFixture[str], code: int, *arguments: str) -> str:
    assert cli.main(list(arguments)) == code
    shown = capsys.readouterr()
    assert shown.out == "" and "Traceback" not in shown.err
    return shown.err


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("launch",),
        ("run",),
        ("run", "a.img", "--rank", "3"),
        ("run", "a.img", "--ranks", "0"),
        ("run", "a.img", "--ranks", "two"),
        ("run", "a.img", "--ranks", "²"),
        ("run", "a.img", "--mesh", "x=²"),
        ("run", "a.img", "--mesh", "x"),
        ("run", "a.img", "--mesh", "x=1,x=2"),
        ("run", "a.img", "-i", "u"),
        ("run", "a.img", "--set", "=3"),
        ("build",),
    ],
)
def test_usage(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    assert "usage: python -m spmd" in refused(capsys, 2, *arguments)


def test_help_says_where_to_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    text = refused(capsys, 2)
    assert "doctor " in text and "COMMAND --help" in text
    assert "try:      --ranks, if" in refused(capsys, 2, "run", "a.img", "--rnks", "3")
    assert "try:" not in refused(capsys, 2, "run", "a.img", "--quick")


def test_options() -> None:
    found = cli.parsed(
        "run a.img -i u=a.npy -i v=b=c.npy -o w=x.npy --set k=1e-3 --mesh x=4,y=2 "
        "--ranks 8 --threads 2".split()
    )
    assert found.input == {"u": "a.npy", "v": "b=c.npy"}
    assert found.output == {"w": "x.npy"} and found.set == {"k": "1e-3"}
    assert found.mesh == {"x": 4, "y": 2} and (found.ranks, found.threads) == (8, 2)


def test_files_for_all_inputs_and_outputs(capsys: pytest.CaptureFixture[str]) -> None:
    found = cli.parsed(
        "run a.img -i a.npz -i ./k=1/b.safetensors -i u=c.npz:v -o o.npz -o w=o.npz".split()
    )
    assert found.input_all == ["a.npz", "./k=1/b.safetensors"] and found.input == {"u": "c.npz:v"}
    assert found.output_all == ["o.npz"] and found.output == {"w": "o.npz"}
    assert "NAME=FILE" in refused(capsys, 2, "run", "a.img", "-o", "out.npy")


def test_what_is_named_twice(capsys: pytest.CaptureFixture[str]) -> None:
    text = refused(capsys, 2, "run", "a.img", "--set", "k=1", "--set", "k=2")
    assert "--set k is given twice" in text
    assert cli.parsed("run a.img --mesh x=2 --mesh y=3".split()).mesh == {"x": 2, "y": 3}
    text = refused(capsys, 2, "run", "a.img", "--mesh", "x=2", "--mesh", "x=3")
    assert "--mesh x is given twice" in text
    text = refused(capsys, 2, "run", "a.img", "-i", "u=a.npy", "-i", "u=b.npy")
    assert "--input u is given twice" in text


def test_eager_is_for_one_process(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "4")
    assert "one process" in refused(capsys, 2, "run", "a.py", "--eager")
    monkeypatch.setenv("PMI_RANK", "1")
    assert refused(capsys, 2, "run", "a.py", "--eager") == ""


def test_the_command(tmp_path: Path) -> None:
    """`spmd` is what `python -m spmd` is; with several processes one of them answers."""
    command = Path(sys.executable).with_name("spmd")
    done = run(["mpirun", "-n", 2, command, "--version"]).expect(0)
    assert done.out.count("spmd ") == 1 and f"spmd {spmd.__version__}, image" in done.out
    wrong = run([command, "run"]).expect(2, "usage: spmd run [-h]")
    assert "python -m" not in wrong.text


def test_completion_by_bash(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Commands, options and files, as bash itself asks for them."""
    assert cli.main(["completion", "bash"]) == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)
    (tmp_path / "heat.py").write_text("")
    (tmp_path / "asks").write_text(
        "source ./script\n"
        "ask() { COMP_WORDS=(spmd \"$@\"); COMP_CWORD=$#; COMPREPLY=(); _shtab_spmd; "
        'echo "${COMPREPLY[@]}"; }\n'
        "ask ru\nask run --no\nask build he\nask bench --barrier st\n"
    )
    done = run(["bash", "asks"], cwd=tmp_path).expect(0)
    assert done.out.split("\n")[:4] == ["run", "--no-cache", "heat.py", "strict"]


def test_the_script_of_the_command_is_not_the_users():
    """An operation that no line of a program asks for has no place, rather than its `main()`."""
    from codegen.places import is_user_file

    assert not is_user_file("/opt/env/bin/spmd") and is_user_file("/opt/mine/spmd.py")


def test_a_package_that_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The message says what to install, by the name that pip knows."""
    (tmp_path / "needs.py").write_text("import sklearn.no_such_part\n")
    said = refused(capsys, 65, "build", str(tmp_path / "needs.py"))
    assert "needs.py:1" in said and "pip install scikit-learn" in said

"""Calls of models that a server has: the same call as of an open image, over HTTP.

In: an address, then inputs and scalars by name. Out: what the model returns. Always holds: nothing
but the standard library and NumPy is needed; what the server refuses is raised as the call itself
would raise it.
"""

from __future__ import annotations

import http.client
import json
import select
import socket
import ssl
from collections import deque
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlsplit

import numpy as np

from codegen import errors
from codegen.errors import PeerError, SpmdError, UsageError
from codegen.image.manifest import scalar_value
from codegen.user import named
from spmd.arrays import numpy_dtype
from spmd.faces import check_named
from spmd.fitting import fitting, shape_of, whole
from spmd.output_trees import structure
from spmd.serving import tensors
from spmd.serving.infer_messages import HEADER, KIND, MICROSECONDS, arrays_of, message, parted
from spmd.tracebacks import plainly

LATER_S = 5.0  # than its timeout a call gives up by itself: until then the server says why
LABELS = ("expected", "found", "try")  # of the lines of a message


@plainly
def connect(url: str, *, token: str | None = None, timeout: float = 60.0,
            cafile: str | None = None) -> RemoteServer:
    """Return the models of a server that `spmd serve` has started, to be called by name.

    - url: the address that the server prints, as "http://127.0.0.1:8000".
    - token: a line of the file that the server got as --token-file.
    - timeout: seconds until a call must be answered.
    - cafile: certificates to trust, a PEM file, for https; default: those of the system.

    Raises UsageError for an address that is none, PeerError where no server answers::

        server = spmd.connect("http://127.0.0.1:8000")
        label = server["digits.infer"](x=x)
    """
    return RemoteServer(url, token, timeout, cafile)


class RemoteServer:
    """A server with its models: what spmd.connect gives. `server["digits.infer"]` is one of them;
    iteration gives the names of all. Threads may share it.
    """

    def __init__(self, url: str, token: str | None, timeout: float, cafile: str | None) -> None:
        parts = urlsplit(url)
        try:
            self._host, self._port = parts.hostname or "", parts.port
        except ValueError:  # of the port
            self._host = ""
        if parts.scheme not in ("http", "https") or not self._host or parts.path.strip("/"):
            raise UsageError(f"{url!r} is no address of a server",
                             expected="http://HOST:PORT, or https://HOST:PORT", found=url)
        self.url, self._timeout = url.rstrip("/"), timeout
        self._tls = ssl.create_default_context(cafile=cafile) if parts.scheme == "https" else None
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._idle: deque[http.client.HTTPConnection] = deque()
        self.models: list[str] = [row["name"] for row in
                                  self._json("POST", "/v2/repository/index", b"{}")]

    @plainly
    def __getitem__(self, name: str) -> RemoteModel:
        """Return the model of a name. Raises UsageError where the server has none of this name."""
        return RemoteModel(self, self._json("GET", f"/v2/models/{quote(name, safe='')}"))

    def __iter__(self) -> Iterator[str]:
        return iter(self.models)

    def __len__(self) -> int:
        return len(self.models)

    def __repr__(self) -> str:
        return f"<server {self.url}: {', '.join(self.models)}>"

    def __enter__(self) -> RemoteServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections that no call uses."""
        while self._idle:
            self._idle.pop().close()

    def _json(self, method: str, path: str, body: bytes | None = None) -> Any:
        return json.loads(self._asked(method, path, body, {})[0])

    def _asked(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> tuple[bytes, str | None]:
        """Return the body of an answer, and how long the JSON is that it begins with. Raises what
        the server refuses, and PeerError where none answers."""
        connection = self._connection()
        try:
            connection.request(method, path, body, {**self._headers, **headers})
            answer = connection.getresponse()
            data = answer.read()
        except BaseException as error:
            connection.close()
            if isinstance(error, (OSError, http.client.HTTPException)):
                raise PeerError(f"no answer of {self.url}", expected="a server: spmd serve IMAGE",
                                found=str(error) or type(error).__name__) from None
            raise
        self._idle.append(connection)
        if answer.status != 200:
            raise _error(answer.status, answer.headers.get(KIND, ""), data)
        return data, answer.headers.get(HEADER)

    def _connection(self) -> http.client.HTTPConnection:
        """Return a connection that no call uses: an open one, or a new one."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                break
            if connection.sock is not None and not _is_readable(connection.sock):
                return connection
            connection.close()  # the server has closed it
        seconds = self._timeout + LATER_S
        if self._tls is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=seconds)
        return http.client.HTTPSConnection(self._host, self._port, timeout=seconds,
                                           context=self._tls)


class RemoteModel:
    """A model of a server: call it with its inputs and scalars by name, as an entry of an image
    that is open here. `metadata` is what the server says of it.
    """

    def __init__(self, server: RemoteServer, metadata: dict[str, Any]) -> None:
        self._server, self.metadata = server, metadata
        self.name: str = metadata["name"]
        self._path = f"/v2/models/{quote(self.name, safe='')}/infer"
        extra = metadata["parameters"]
        self._returns, self._called = json.loads(extra["returns"]), extra["entry"] or "the program"
        self._names = [row["name"] for row in metadata["inputs"]]
        rows = {row["name"]: {**row, "dtype": tensors.DATATYPES[row["datatype"]]}
                for row in metadata["inputs"]}
        self._scalars = {name: row for name, row in rows.items()
                         if row.get("parameters", {}).get("scalar")}
        self._inputs = {name: row for name, row in rows.items() if name not in self._scalars}
        self._outputs = [row["name"] for row in metadata["outputs"]]

    def __repr__(self) -> str:
        return f"<model {self.name}({', '.join(self._names)})>"

    @plainly
    def __call__(self, *unnamed: Any, **arguments: Any) -> Any:
        """Call the model once. Returns its outputs, in the nest that the program returns.

        `only="label"`, or several names, asks for some outputs: None stands for the others. Raises
        what a call of an open image raises; PeerError where no server answers, where its queue is
        full, or where no result comes in time.
        """
        check_named(self._called, self._names, unnamed)
        only = None if "only" in self._names else arguments.pop("only", None)
        arrays = [(name, self._array(name, value), True)
                  for name, value in named.spread(arguments, self._inputs).items()
                  if value is not None]
        head: dict[str, Any] = {"parameters": {
            "binary_data_output": True, "timeout": int(self._server._timeout * MICROSECONDS)}}
        if only is not None:
            head["outputs"] = [{"name": name} for name in named.asked(only, self._outputs)]
        body, length = message(head, "inputs", arrays)
        headers = {} if length is None else {HEADER: str(length)}
        answer, tail = parted(*self._server._asked("POST", self._path, body, headers))
        outputs = arrays_of(answer["outputs"], tail)
        if self._returns is None:
            return None
        return structure(self._returns, [_own(outputs.get(name)) for name in self._outputs])

    def _array(self, name: str, value: Any) -> np.ndarray:
        """Return an argument as it travels: checked as a call here would, but for its shape."""
        value = whole(value)
        if name in self._inputs:
            fits = fitting(self._inputs[name], shape_of(value), value)
            assert isinstance(fits, np.ndarray)  # whole() has made arrays of all others
            return fits
        if name in self._scalars:
            row = self._scalars[name]
            dtype = numpy_dtype(row["dtype"])
            declared = {"name": name, "default": row["parameters"].get("default"),
                        "dtype": "int64" if dtype.kind == "b" else row["dtype"]}
            return np.asarray(scalar_value(declared, value), dtype)
        array = np.asarray(value)  # the server will say that it has no such input
        return array if tensors.datatype_of(array) else np.zeros(0, np.float32)


def _is_readable(sock: socket.socket) -> bool:
    """Return whether there is something to read, the end among it."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def _own(array: np.ndarray | None) -> np.ndarray | None:
    """Return an array that may be written to, as outputs of a call here are."""
    return None if array is None else array.copy()


def _error(status: int, kind: str, data: bytes) -> SpmdError:
    """Return the error that an answer says, of the class that it names."""
    try:
        text = str(json.loads(data)["error"])
    except (ValueError, TypeError, KeyError):
        text = data.decode("utf-8", "replace")[:1000] or f"status {status}"
    return error_of(kind, text, PeerError if status >= 429 else UsageError)


def error_of(kind: str, text: str, otherwise: type[SpmdError]) -> SpmdError:
    """Return the error of a class, by its name, with these sentences; otherwise: the class where
    the name is that of none."""
    class_ = getattr(errors, kind, None) if kind in errors.__all__ else None
    if not (isinstance(class_, type) and issubclass(class_, SpmdError)):
        class_ = otherwise
    if issubclass(class_, errors.CheckError):
        return class_(text)
    lines = text.split("\n")
    parts = {label: line.partition(":")[2].strip() for line in lines for label in LABELS
             if line.startswith(f"  {label}:")}
    first = [line for line in lines if not line.startswith(tuple(f"  {x}:" for x in LABELS))]
    return class_("\n".join(first), expected=parts.get("expected", ""),
                  found=parts.get("found", ""), remedy=parts.get("try", ""))

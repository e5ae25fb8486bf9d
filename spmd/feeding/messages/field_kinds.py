"""What a field of a message may hold: one checker per kind of value, made of codegen.validators.

In: a value that JSON gave. Out: nothing, or Invalid, which says what was expected.
Always holds: every length, count and depth has a limit, so that no message is costly to check.
"""

from __future__ import annotations

import re

from codegen.validators import Invalid, by_name, integer, pattern

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from codegen.validators import Check

LARGEST = 2**62

count, positive = integer(0, LARGEST), integer(1, LARGEST)
identity = pattern(re.compile(r"[0-9a-f]{16}"), "16 hexadecimal digits")
name = pattern(re.compile(r"[A-Za-z0-9_.@:+-]{1,128}"), "a name of letters, digits and _.@:+-")
address = pattern(re.compile(r"(tcp|ipc|inproc)://[\x21-\x7e]{1,256}"),
                  "an address such as tcp://host:5555")
bits = pattern(re.compile(r"(?:[0-9a-f]{2}){1,262144}"),
               "pairs of hexadecimal digits, 262144 at most")
key = pattern(re.compile(r"[0-9A-Za-z.:+=^!/*?&<>()\[\]{}@%$#-]{40}|"),  # Z85, or none
              "a key of 40 characters")
job_name = pattern(re.compile(r"[A-Za-z0-9_.@:+-]{1,128}/\d{1,18}"),
                   "the name of a job, as images/3")
job_file = pattern(re.compile(r"image|stdout|stderr|(?:in|out|start|said|end)\.\d{1,3}"),
                   "image, stdout, stderr, in.N, out.N, start.N, said.N or end.N")
file_name = pattern(re.compile(r"(?!\.\.?$)[^-/\0\n][^/\0\n]{0,254}"),
                    "the name of a file, without folders")


def plain(depth: int = 4, most: int = 256) -> Check:
    """Return the checker of texts, numbers, flags, and of lists and objects of them, to a depth."""
    def check(value: Any, left: int = depth) -> None:
        if isinstance(value, dict | list):
            if left <= 0 or len(value) > most:
                raise Invalid(f"at most {most} entries, {depth} levels deep", value)
            for item in value.values() if isinstance(value, dict) else value:
                check(item, left - 1)
            for key in value if isinstance(value, dict) else ():
                if len(key) > 128:
                    raise Invalid("a key of at most 128 characters", key)
            return
        if isinstance(value, str):
            if len(value) > 65536:
                raise Invalid("a text of at most 65536 characters", value)
        elif isinstance(value, float):
            if not abs(value) <= 1e300:
                raise Invalid("a finite number", value)
        elif type(value) is int:
            if abs(value) > LARGEST:
                raise Invalid(f"an integer of at most {LARGEST}, with or without a minus", value)
        elif value is not None and type(value) is not bool:
            raise Invalid("a text, a number or a flag", value)
    return check


settings = by_name(plain(), 256, name)

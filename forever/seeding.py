"""One seed gives every part of a run its own stream of random numbers.

A stream is named by what it is for, such as ("data", task) or ("dropout", task, update). Streams
hold no state: asking for the same name again gives the same numbers. So nothing has to be saved for
a resumed run to go on bit for bit, and a method that draws more from its own stream disturbs nobody
else's.
"""

import hashlib
import random


def derive(seed: int, *name: str | int) -> int:
    """Return a 63-bit seed for the stream `name`.

    It is made by SHA-256 and not by `hash`, which Python salts anew in every process.
    """
    text = "/".join(str(part) for part in (seed, *name))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def permutation(count: int, seed: int, *name: str | int) -> list[int]:
    """The numbers 0..count-1 in the random order of the stream `name`."""
    numbers = list(range(count))
    random.Random(derive(seed, *name)).shuffle(numbers)
    return numbers

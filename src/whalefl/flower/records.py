"""Bytes on the wire: a body and a block of bytes, cut into chunks that even a slow link moves in one request.

Needs no torch: it is imported anew for every message on a device.
"""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from whalefl.flower.refusal import Refused

_BODY, _BLOCK, _TEXT = "body", "block", "json"
_STYPE = "whalefl.bytes"


def to_records(body: str, block: bytes, chunk_bytes: int) -> RecordDict:
    """A body and a block of bytes as the content of a Flower message."""
    pieces = [block[start : start + chunk_bytes] for start in range(0, len(block), chunk_bytes)]
    arrays = {f"{number:06d}": Array("uint8", (len(piece),), _STYPE, piece) for number, piece in enumerate(pieces)}
    return RecordDict({_BODY: ConfigRecord({_TEXT: body}), _BLOCK: ArrayRecord(arrays)})


def from_records(records: RecordDict, most_bytes: int) -> tuple[str, bytes]:
    """The body and the block of a message; raises `Refused` where it is of another form or longer than agreed."""
    if set(records) != {_BODY, _BLOCK}:
        raise Refused(f"records named {sorted(map(str, records))[:5]}; {_BODY!r} and {_BLOCK!r} were expected")
    body, block = records[_BODY], records[_BLOCK]
    if not isinstance(body, ConfigRecord) or set(body) != {_TEXT} or not isinstance(body[_TEXT], str):
        raise Refused("a body that is not one text")
    if not isinstance(block, ArrayRecord):
        raise Refused("a block that is not made of arrays")
    length = sum(len(array.data) for array in block.values())
    if length > most_bytes:
        raise Refused(f"{length} bytes of tensors; at most {most_bytes} were agreed")
    if sorted(block) != [f"{number:06d}" for number in range(len(block))]:
        raise Refused("chunks that are not numbered from 0 on")
    return str(body[_TEXT]), b"".join(block[name].data for name in sorted(block))

"""Mutations of an input: of its bytes, tokens, lines, JSON tree, protobuf fields or compression."""

import gzip
import json
import re
import zlib
from collections.abc import Callable
from random import Random
from typing import Any

_TOKEN = re.compile(rb"""[A-Za-z_][\w-]*|[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|"(?:\\.|[^"\\\n])*"|\s+|.""", re.DOTALL)
_NUMBER = re.compile(rb"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")

NUMBERS = [
    b"0", b"-1", b"1", b"0.5", b"1e-9", b"1e400", b"-1e400", b"1e30", b"nan", b"inf", b"-inf", b"Infinity", b"NaN",
    b"255", b"65536", b"2147483648", b"4294967295", b"4294967296", b"9007199254740993", b"9223372036854775807",
    b"9223372036854775808", b"18446744073709551615", b"18446744073709551616", b"9" * 22, b"9" * 400, b"1" * 5000,
    b"0x10", b"1_000", b"00", b"-0", b"1.", b".5", b"1e", b"0." + b"0" * 60 + b"1",
]  # fmt: skip
PIECES = [
    b"", b" ", b"\t", b"\n", b"\r", b"\r\n", b"\x00", b"\x1b[31m", b"\x07", b"\x9b", b"\xff\xfe", b"\xef\xbb\xbf",
    b"\xc2\x85", b"\xe2\x80\xa8", b"\xe2\x80\xae", b"\xed\xa0\x80", b"\\ud800", b"\\u0000", b"'", b'"', b'"""', b"'''",
    b"\\", b"#", b",", b",,", b";", b":", b"=", b".", b"{", b"}", b"[", b"]", b"[[", b"]]", b"(", b"null", b"true",
    b"false", b'""', b"[]", b"{}", b"[[]]", b"../../x", b"/dev/zero", b"/proc/self/mem", b"~", b"*", b"%s", b"{0}",
    b"<script>", b"1979-05-27", "é".encode(), "٣".encode(), "𝟘".encode(), b"10Gbps", b"10us", b"1B", b"h0", b"a" * 300,
]  # fmt: skip
MOST_BYTES = 1 << 20
"""Longer mutants are cut off: an input may not win by its size alone."""
_RARE = 150
"""One of so many mutations makes an input long or deep."""


def mutated(chance: Random, samples: list[bytes], kind: str) -> bytes:
    """Return a sample with one to six mutations; `kind` is text, json, proto, gzip or zlib."""
    data = chance.choice(samples)
    times = chance.choice((1, 1, 1, 2, 2, 3, 6))
    if kind == "json" and chance.random() < 0.6:
        return _json(chance, data, samples, times)
    if kind == "proto" and chance.random() < 0.6:
        return _proto(chance, data, times)
    if kind in _PACKS:
        return _packed(chance, data, samples, times, _PACKS[kind])
    for _ in range(times):
        data = _bytes(chance, data, samples)
    return data[:MOST_BYTES]


def _bytes(chance: Random, data: bytes, samples: list[bytes]) -> bytes:
    if chance.randrange(_RARE) == 0:
        return _large(chance, data)
    kind = chance.randrange(12)
    start, stop = _token(chance, data)
    token = data[start:stop]
    if kind == 0:
        return data[:start] + data[stop:]
    if kind == 1:
        return data[:stop] + token + data[stop:]
    if kind == 2:
        return data[:start] + chance.choice(PIECES) + data[stop:]
    if kind == 3:
        return data[:start] + chance.choice(PIECES) + data[start:]
    if kind in (4, 5):
        found = _NUMBER.search(data, start) or _NUMBER.search(data)
        start, stop = found.span() if found else (start, stop)
        return data[:start] + chance.choice(NUMBERS) + data[stop:]
    if kind == 6:
        first, second = sorted((_token(chance, data), (start, stop)))
        if first[1] > second[0]:
            return data
        return (
            data[: first[0]]
            + data[slice(*second)]
            + data[first[1] : second[0]]
            + data[slice(*first)]
            + data[second[1] :]
        )
    if kind == 7:
        return _lines(chance, data)
    if kind == 8:
        other = chance.choice(samples)
        return data[: _cut(chance, data)] + other[_cut(chance, other) :]
    if kind == 9:
        return data[: chance.randrange(len(data) + 1)]
    if kind == 10:
        changed = bytearray(data)
        for _ in range(chance.choice((1, 1, 4, 32)) if data else 0):
            changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
        return bytes(changed)
    return data[:start] + chance.randbytes(chance.choice((1, 2, 8))) + data[start:]


def _token(chance: Random, data: bytes) -> tuple[int, int]:
    found = _TOKEN.search(data, chance.randrange(len(data) + 1))
    return found.span() if found else (len(data), len(data))


def _cut(chance: Random, data: bytes) -> int:
    """Return a place, mostly the beginning of a line."""
    place = chance.randrange(len(data) + 1)
    return data.rfind(b"\n", 0, place) + 1 if chance.random() < 0.7 else place


def _lines(chance: Random, data: bytes) -> bytes:
    lines = data.split(b"\n")
    one, other = chance.randrange(len(lines)), chance.randrange(len(lines))
    kind = chance.randrange(5)
    if kind == 0:
        del lines[one]
    elif kind == 1:
        lines.insert(other, lines[one])
    elif kind == 2:
        lines[one], lines[other] = lines[other], lines[one]
    elif kind == 3:
        lines = lines[:one] + lines[one:][::-1]
    else:
        return chance.choice((b"\r", b"\r\n", b"\n\n", b"\x0b")).join(lines)
    return b"\n".join(lines)


def _large(chance: Random, data: bytes) -> bytes:
    """Make an input long, deep or wide."""
    start, stop = _token(chance, data)
    count = chance.choice((200, 2000, 20_000))
    kind = chance.randrange(5)
    if kind == 0:
        middle = chance.choice((b"[", b"{", b'{"a":', b"(", b"a.", b"[[", b"{a=")) * count
    elif kind == 1:
        middle = b"[" * count + b"]" * count
    elif kind == 2:
        middle = data[start:stop] * count
    elif kind == 3:
        line = data[data.rfind(b"\n", 0, start) + 1 : data.find(b"\n", start) + 1 or len(data)]
        middle = line * min(count, 1 + MOST_BYTES // (len(line) + 1))
    else:
        middle = b"".join(b"\nkey%d = %d" % (number, number) for number in range(count))
    return (data[:start] + middle + data[start:])[:MOST_BYTES]


# JSON


def _json(chance: Random, data: bytes, samples: list[bytes], times: int) -> bytes:
    try:
        tree, text = json.loads(data), chance.choice(samples)
        for _ in range(times):
            # Anew each time, or a node would be in the tree twice, and within itself.
            tree = _in_tree(chance, tree, json.loads(text))
    except ValueError:
        return _bytes(chance, data, samples)
    try:
        return json.dumps(tree).encode()[:MOST_BYTES]
    except (ValueError, RecursionError):
        return _bytes(chance, data, samples)


def _in_tree(chance: Random, tree: Any, other: Any) -> Any:
    """Return the tree with one node changed; nodes near the root are chosen as often as those below."""
    if not isinstance(tree, (dict, list)) or not tree or chance.random() < 0.15:
        return _value(chance, tree, other)
    keys = list(tree) if isinstance(tree, dict) else range(len(tree))
    key = chance.choice(keys)
    kind = chance.randrange(12)
    if kind == 0:
        del tree[key]
    elif kind == 1 and isinstance(tree, list):
        tree.insert(chance.randrange(len(tree) + 1), tree[key])
    elif kind == 1:
        tree[chance.choice(("", "x", "\u202e", "\x1b", key + "x", key * 3))] = tree[key]
    elif kind == 2:
        again = chance.choice(keys)
        tree[key], tree[again] = tree[again], tree[key]
    elif kind == 3:
        tree[key] = [tree[key]] if chance.random() < 0.5 else {"x": tree[key]}
    else:
        tree[key] = _in_tree(chance, tree[key], other)
    return tree


def _value(chance: Random, old: Any, other: Any) -> Any:
    kind = chance.randrange(8)
    if kind == 0:
        return chance.choice((None, True, False, [], {}, "", [None], [[]], {"": None}))
    if kind <= 3:
        try:
            return json.loads(chance.choice(NUMBERS))
        except ValueError:
            return chance.choice((2**63, 2**64, -1, 10**25, 1e308, 0.1))
    if kind == 4:
        return chance.choice(PIECES).decode("latin-1")
    if kind == 5:
        return chance.choice((str(old)[:200], [old], -old if isinstance(old, (int, float)) else old))
    if kind == 6 and chance.random() < 0.02:
        deep: Any = old
        for _ in range(chance.choice((100, 900))):
            deep = [deep]
        return deep
    while isinstance(other, (dict, list)) and other and chance.random() < 0.8:
        other = chance.choice(list(other.values()) if isinstance(other, dict) else other)
    return other


# Protobuf


def _proto(chance: Random, data: bytes, times: int) -> bytes:
    """Change one record of length-delimited ones, and write its new length."""
    records = []
    place = 0
    while place < len(data):
        length, place = varint(data, place)
        records.append(data[place : place + length])
        place += length
    for _ in range(times):
        index = chance.randrange(len(records))
        kind = chance.randrange(8)
        if kind == 0:
            records.insert(chance.randrange(len(records) + 1), records[index])
        elif kind == 1 and len(records) > 1:
            del records[index]
        elif kind == 2:
            records[index] = _changed_field(chance, records[index], 3)
        else:
            records[index] = _changed_field(chance, records[index], 0)
    return b"".join(_as_varint(len(record)) + record for record in records)


def _changed_field(chance: Random, record: bytes, deeper: int) -> bytes:
    """Change a field of a message, or of a message in it."""
    fields = []
    place = 0
    try:
        while place < len(record):
            start = place
            tag, place = varint(record, place)
            begin = place
            if tag & 7 == 0:
                _, place = varint(record, place)
            elif tag & 7 == 2:
                length, begin = varint(record, place)
                place = begin + length
            else:
                place += 8 if tag & 7 == 1 else 4
            fields.append((start, tag, begin, place))
    except IndexError:
        return _bytes(chance, record, [record])
    if not fields or place != len(record):
        return _bytes(chance, record, [record])
    start, tag, begin, stop = chance.choice(fields)
    if tag & 7 == 0:
        content = _as_varint(chance.choice((0, 1, 2**31, 2**32 - 1, 2**32, 2**63, 2**64 - 1, chance.getrandbits(20))))
        return record[:begin] + content + record[stop:]
    if tag & 7 != 2:
        return record[:begin] + chance.randbytes(stop - begin) + record[stop:]
    inner = record[begin:stop]
    if deeper < 4 and chance.random() < 0.6:
        inner = _changed_field(chance, inner, deeper + 1)
    else:
        inner = chance.choice((b"", inner * 2, chance.choice(PIECES), chance.choice(NUMBERS), inner[: len(inner) // 2]))
    return record[:start] + _as_varint(tag) + _as_varint(len(inner)) + inner + record[stop:]


def varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        place += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, place


def _as_varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes((*out, value))


# What is compressed

Pack = Callable[[bytes], bytes]
_PACKS: dict[str, Pack] = {
    "gzip": lambda data: gzip.compress(data, 1, mtime=0),
    "zlib": lambda data: zlib.compress(data, 1),
}


def _packed(chance: Random, data: bytes, samples: list[bytes], times: int, pack: Pack) -> bytes:
    """Change what is compressed, or the compressed bytes; samples are not compressed."""
    kind = chance.randrange(8)
    if kind < 5:
        return pack(_json(chance, data, samples, times) if kind < 3 else _bytes(chance, data, samples))
    packed = pack(data)
    if kind == 5:
        return packed[: chance.randrange(len(packed))]
    if kind == 6:
        return packed + chance.choice((packed, b"\x00" * 20, b"x"))
    changed = bytearray(packed)
    for _ in range(chance.choice((1, 1, 8))):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)

"""Traces in archives: what is read of tar and zip is what is read of the folder of their members."""

import contextlib
import gzip
import io
import json
import random
import tarfile
import zipfile
from pathlib import Path

import pytest

import gradtide as gt
from gradtide import inputs, traces
from gradtide.traces import archives
from gradtide.traces.reading import read_model

RANKS = 3


def kineto(rank: int) -> bytes:
    """Return a trace of two steps, in each a backward pass and an all-reduce of 4 kB, on several lines."""

    def event(category, name, tid, ts, dur, **args):
        return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args}

    events = []
    for step in range(3):
        at = 1000 * step
        events += [
            event("user_annotation", f"ProfilerStep#{step}", 1, at, 1000),
            event("cpu_op", "aten::mm", 1, at, 100 + rank),
            event("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 1, at + 200, 200),
            event("cpu_op", "c10d::allreduce_", 1, at + 400, 1),
            event(
                "user_annotation",
                "gloo:all_reduce",
                2,
                at + 410,
                300,
                **{"Input Dims": [[1000]], "Input type": ["float"]},
            ),
        ]
    job = {"rank": rank, "world_size": RANKS, "pg_config": [{"pg_name": "0", "ranks": list(range(RANKS))}]}
    return json.dumps({"schemaVersion": 1, "distributedInfo": job, "traceEvents": events}, indent=1).encode()


FILES = {
    "run/rank2.json": kineto(2),
    "run/deep/er/rank0.json.gz": gzip.compress(kineto(0)),
    "run/._rank0.json": b"\0\5\26\7 what macOS adds",
    "run/README.md": b"no trace",
    "../rank1.json": kineto(1),
    "run/weights.bin": random.Random(1).randbytes(40_000),
}


def tarred(path: Path, contents: dict[str, bytes], mode: str = "w", form: int = tarfile.PAX_FORMAT) -> Path:
    with tarfile.open(path, mode, format=form) as archive:
        link = tarfile.TarInfo("run/rank7.json")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
        for kind in (tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE):
            other = tarfile.TarInfo(f"other{kind!r}.json")
            other.type = kind
            archive.addfile(other)
        for name, content in contents.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def zipped(path: Path, contents: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.mkdir("run") if hasattr(archive, "mkdir") else None
        for name, content in contents.items():
            archive.writestr(name, content)
    return path


WAYS = {
    "a.tar": tarred,
    "a.tgz": lambda path, files: tarred(path, files, "w:gz"),
    "a.tar.gz": lambda path, files: tarred(path, files, "w:gz", tarfile.GNU_FORMAT),
    "old.bin": lambda path, files: tarred(path, files, "w", tarfile.USTAR_FORMAT),
    "a.zip": zipped,
    "stored.bin": lambda path, files: zipped(path, files, zipfile.ZIP_STORED),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("folder")
    for rank in range(RANKS):
        (folder / f"rank{rank}.json").write_bytes(kineto(rank))
    return folder


@pytest.mark.parametrize("name", WAYS)
def test_an_archive_is_the_folder_of_its_members(tmp_path, folder, name):
    before = sorted(folder.iterdir())
    path = WAYS[name](tmp_path / name, FILES)
    wanted, found = traces.read(folder), traces.read(path)
    assert found.summary() == wanted.summary()
    assert found.ops.to_dicts() == wanted.ops.to_dicts()
    assert gt.from_kineto([path]).waterfall().summary == wanted.waterfall().summary
    assert [*tmp_path.iterdir()] == [path]
    assert sorted(folder.iterdir()) == before


def test_a_list_and_a_pattern_take_archives(tmp_path, folder):
    for rank in range(RANKS):
        tarred(tmp_path / f"host{rank}.tgz", {"out/trace.json": kineto(rank)}, "w:gz")
    wanted = traces.read(folder).summary()
    assert traces.read(str(tmp_path / "host*.tgz")).summary() == wanted
    assert traces.read([tmp_path / f"host{rank}.tgz" for rank in (2, 0, 1)]).summary() == wanted
    assert traces.read([tmp_path / "host1.tgz", folder / "rank0.json", folder / "rank2.json"]).summary() == wanted


def test_ranks_without_a_number_count_by_name_whatever_the_order_in_the_archive(tmp_path):
    # Of Chakra, where the last number of a name is the rank and files without one count from 0.
    chakra = b"\x07\x0a\x050.0.4" + b"\x0a\x08\x01\x12\x02mm\x18\x04\x30"
    contents = {f"x/{letter}.et": chakra + bytes([10 + place]) for place, letter in enumerate("abc")}
    (tmp_path / "x").mkdir()
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    wanted = traces.read(tmp_path / "x").ops.to_dicts()
    assert len({row["rank"] for row in wanted}) == 3
    for order in ("bca", "cab"):
        path = tarred(tmp_path / "a.tar", {f"x/{one}.et": contents[f"x/{one}.et"] for one in order})
        assert traces.read(path).ops.to_dicts() == wanted


def test_a_model_is_read_of_an_archive_once_while_it_does_not_change(tmp_path, folder):
    path = tarred(tmp_path / "a.tgz", FILES, "w:gz")
    first = read_model(path)
    assert first.layers == read_model(folder).layers
    assert first.name == "a"
    assert read_model(path) is first
    job = {"model": "a.tgz", "workers": 4}
    scenario = gt.Scenario.from_dict({"job": {"a": job}, "cluster": {"link": {"rate": "1Gbps"}}}, tmp_path)
    assert "step 1 of rank 2" in str(scenario.to_dict())
    tarred(path, {name: content for name, content in FILES.items() if "rank2" not in name}, "w:gz")
    assert read_model(path).rank == 1


def test_of_two_files_of_one_name_the_later_one_counts(tmp_path, folder):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for content in (b"{}", kineto(0)):
            info = tarfile.TarInfo("rank0.json")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    assert traces.read(tmp_path / "a.tar").rank_numbers == [0]


# What is wrong


def refused(path: Path, *said: str) -> None:
    with pytest.raises(gt.TraceError) as caught:
        traces.read(path)
    for part in (str(path), *said):
        assert part in str(caught.value)


@pytest.mark.parametrize("name", ["a.tgz", "a.tar", "a.zip"])
def test_an_error_names_archive_member_and_line(tmp_path, name):
    cut = kineto(1)[:600]
    path = WAYS[name](tmp_path / name, {"x/rank0.json": kineto(0), "x/rank1.json": cut})
    refused(path, f"{path}: x/rank1.json: ", f"in line {cut.count(10) + 1}")
    path = WAYS[name](tmp_path / f"b{name}", {"x/rank0.json": kineto(0), "y/rank0.json": kineto(0)})
    refused(path, f"{path}: x/rank0.json", f"{path}: y/rank0.json", "both of rank 0")
    path = WAYS[name](tmp_path / f"c{name}", {"x/rank0.json": b'{"ops": [], "target": 0}', "rank1.json": kineto(1)})
    refused(path, "x/rank0.json", "a graph of ops")


@pytest.mark.parametrize("name", ["a.tgz", "a.tar", "a.zip"])
def test_an_archive_that_is_cut_off_or_damaged_is_refused(tmp_path, name):
    whole = WAYS[name](tmp_path / name, {f"rank{rank}.json": kineto(rank) for rank in range(RANKS)}).read_bytes()
    draw = random.Random(3)
    end = len(whole) if name != "a.tar" else whole.rindex(b"traceEvents")
    for place in [600, end // 2, end - 9, *(draw.randrange(600, end) for _ in range(9))]:
        path = tmp_path / f"cut{place}{Path(name).suffix}"
        path.write_bytes(whole[:place])
        if place % 512 or name != "a.tar":
            refused(path)
    if name == "a.tar":
        second = whole.index(b"rank1.json")
        path = tmp_path / "damaged.tar"
        path.write_bytes(whole[: second + 5] + b"7" + whole[second + 6 :])
        refused(path, "archive is damaged or cut off")


@pytest.mark.parametrize("name", ["a.tgz", "a.tar", "a.zip"])
def test_any_damage_is_read_or_refused(tmp_path, name):
    whole = WAYS[name](tmp_path / name, {"rank0.json": kineto(0)[:1200] + b"]}", "x/rank1.json": b"{}"}).read_bytes()
    draw = random.Random(name)
    for count in range(60):
        content = bytearray(whole)
        for _ in range(draw.randrange(1, 4)):
            content[draw.randrange(len(content))] = draw.randrange(256)
        path = tmp_path / f"{count}{name}"
        path.write_bytes(content)
        with contextlib.suppress(gt.TraceError):
            traces.read(path)


def test_an_archive_without_a_trace_says_so(tmp_path):
    for name, way in WAYS.items():
        refused(way(tmp_path / name, {"a.txt": b"x", ".hidden.json": b"{}"}), "is an archive without a file *.et")
    refused(zipped(tmp_path / "e.zip", {}), "is an archive without a file")
    weights = zipped(tmp_path / "w.zip", {"archive/data.pkl": b"\x80\2", "archive/version": b"3"})
    refused(weights, "a file of torch.save")


# Limits


def test_a_member_that_unpacks_to_too_much_is_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr(inputs, "FREE_BYTES", 100_000)
    bomb = gzip.compress(b" " * 3_000_000)
    refused(tarred(tmp_path / "a.tar", {"rank0.json.gz": bomb}), "rank0.json.gz: ", "--max-input")
    refused(tarred(tmp_path / "a.tgz", {"rank0.json": b" " * 3_000_000}, "w:gz"), "--max-input")
    refused(zipped(tmp_path / "a.zip", {"rank0.json": b" " * 3_000_000}), "rank0.json: ", "--max-input")
    refused(zipped(tmp_path / "b.zip", {"rank0.json.gz": gzip.compress(bomb)}), "rank0.json.gz: ")
    monkeypatch.setattr(inputs, "MAX_DATA_BYTES", 5_000)
    with inputs.allowing(10_000_000):
        refused(tarred(tmp_path / "c.tar", {"rank0.json.gz": bomb}), "the file is empty")


def test_names_and_numbers_of_members_are_limited(tmp_path, monkeypatch):
    refused(tarred(tmp_path / "a.tar", {"x" * 2_000_000 + ".json": b"{}"}), "a header has more than")
    monkeypatch.setattr(archives, "MOST_MEMBERS", 3)
    for name, way in WAYS.items():
        refused(way(tmp_path / name, {f"{place}.txt": b"" for place in range(4)}), "contains more than 3 files")


def test_what_a_zip_packs_otherwise_is_named(tmp_path):
    refused(zipped(tmp_path / "a.zip", {"rank0.json": kineto(0)}, zipfile.ZIP_LZMA), "rank0.json: ", "method 14")
    path = zipped(tmp_path / "b.zip", {"rank0.json": kineto(0)})
    content = bytearray(path.read_bytes())
    content[content.rindex(b"PK\1\2") + 8] |= 1  # the flag that it is encrypted
    path.write_bytes(content)
    refused(path, "it is encrypted")


def test_other_packings_are_named_with_the_command(tmp_path):
    import bz2
    import lzma

    for name, content in {"bunzip2": bz2.compress(kineto(0)), "unxz": lzma.compress(kineto(0))}.items():
        path = tmp_path / f"{name}.json"
        path.write_bytes(content)
        refused(path, name)

"""A hint by spelling is a misspelling; what the field knows and gradtide lacks is called that, with the page."""

import re
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import gradtide as gt
from gradtide import known, presets
from gradtide.architecture import FAMILIES, Architecture, FieldError
from gradtide.errors import LOOKALIKE, MAX_EDITS, did_you_mean, edits, edits_allowed, hinted, nearest
from gradtide.presets import graphs
from gradtide.scenario.keys import ScenarioFile
from gradtide.scenario.read import _inner

ROOT = Path(__file__).resolve().parent.parent
_FIELD = """
dcqcn timely hpcc swift bbr rocev2 roce pfc rdma irn homa ndp eqds pfabric powertcp vegas mptcp quic uec
spray packet_spraying flowlet conga letflow hula drill adaptive plb valiant wcmp ucmp
torus 2d-torus 3d_torus dragonfly dragonfly+ hypercube slimfly jellyfish bcube mesh rail-optimized
nvls collnet sharp pat bruck swing blueconnect sccl taccl msccl ll128
codel fq_codel fq pie prio htb sfq wfq wred wrr mqprio pifo
llama4 llama4_text llama-4-scout gpt_oss gpt-oss-20b mamba mamba2 jamba gemma3 phi3 falcon bloom opt deberta t5 grok
tpu tpu-v4 tpu_v5e gaudi gaudi2 gaudi3 trainium trainium2 trn1 inferentia ascend910b groq a10 l4 gb200 mi250x m3max
sincronia varys aalo srpt slurm byteps tiresias
tf32 fp4 nvfp4 mxfp8 int8 fp64 dualpipe zb-h1 ulysses ns3 htsim simgrid astra-sim omnet++ prr
"""
FIELD = _FIELD.split()


def enumerated() -> dict[tuple[str, ...], list[str]]:
    """Return every key of a scenario that takes certain words, with the words."""
    found: dict[tuple[str, ...], list[str]] = {}

    def walk(table: Any, path: tuple[str, ...]) -> None:
        for name, info in table.declared().items():
            words = sorted(word for word in literals(info.annotation) if isinstance(word, str))
            if words:
                found[(*path, name)] = words
            inner = _inner(info.annotation)
            if inner is not None and len(path) < 6:
                walk(inner, (*path, name, "x") if name in ("job", "traffic") and not path else (*path, name))

    walk(ScenarioFile, ())
    return found


def literals(annotation: Any) -> set[Any]:
    if get_origin(annotation) is Literal:
        return set(get_args(annotation))
    return {word for part in get_args(annotation) for word in literals(part)}


VOCABULARIES = enumerated()


def names_of_presets() -> list[str]:
    kinds = ("model", "language", "device", "accelerator", "cluster", "flow")
    names = [name for kind in kinds for name in getattr(presets, f"{kind}_names")()]
    return [*names, *graphs.graph_names(), *FAMILIES]


def test_nothing_that_gradtide_has_is_said_to_be_lacking() -> None:
    words = [word for listed in VOCABULARIES.values() for word in listed]
    assert len(VOCABULARIES) > 20
    # A word of one vocabulary may be lacking in another: ring is a collective, and no topology.
    own = [(path, word) for path, listed in VOCABULARIES.items() for word in listed if said_by_key(path, word)]
    assert own == []
    assert [name for name in names_of_presets() if known.find("", name)] == []
    assert words


def said_by_key(path: tuple[str, ...], word: str) -> bool:
    data = {"job": {"a": {"model": "resnet50", "workers": 2}}}
    table: Any = data
    for part in path[:-1]:
        table = table.setdefault("a" if part == "x" else part, {})
        if not isinstance(table, dict):
            return False
    table[path[-1]] = word
    try:
        gt.Scenario.from_dict(data)
    except gt.ScenarioError as error:
        return any("does not model" in fault["hint"] for fault in error.errors)
    return False


def test_every_entry_has_a_page_that_is_there_and_names_that_find_it() -> None:
    for entry in known.LACKING:
        assert (ROOT / entry.page).is_file(), entry
        assert entry.instead
        assert all(re.fullmatch(r"[a-z0-9.*+?|()\[\]<!:\\-]+", name) for name in entry.names), entry
    assert len({(entry.kind, entry.title) for entry in known.LACKING}) == len(known.LACKING)


@pytest.mark.parametrize("name", FIELD)
def test_a_name_of_the_field_is_known_to_be_lacking(name: str) -> None:
    said = known.lacking("", name)
    assert said is not None
    assert "does not model" in said
    assert "docs/" in said


@pytest.mark.parametrize("path", VOCABULARIES, ids=".".join)
def test_every_vocabulary_answers_names_of_the_field_without_proposing_another_thing(path: tuple[str, ...]) -> None:
    words = VOCABULARIES[path]
    for name in FIELD:
        for kind in ("", *{entry.kind for entry in known.LACKING}):
            assert "did you mean" not in did_you_mean(name, words, "a list", kind=kind)
            assert "did you mean" not in hinted(name, words, "a list", kind=kind)


@pytest.mark.parametrize("name", FIELD)
def test_names_of_the_field_are_not_taken_for_presets(name: str) -> None:
    assert "did you mean" not in did_you_mean(name, names_of_presets(), "", kind="model")


@pytest.mark.parametrize(
    ("path", "value", "never"),
    [
        (("cluster", "queue", "kind"), "pfc", '"pcn"'),
        (("cluster", "transport", "kind"), "dcqcn", '"dctcp"'),
        (("cluster", "transport", "kind"), "pfc", '"pcn"'),
        (("cluster", "routing"), "spray", '"spread"'),
        (("cluster", "topology", "kind"), "torus", "did you mean"),
        (("cluster", "queue", "kind"), "codel", "did you mean"),
        (("job", "a", "collective", "kind"), "nvls", "did you mean"),
        (("job", "a", "schedule", "order"), "sincronia", "did you mean"),
        (("job", "a", "compute", "device"), "TPU-v4", "did you mean"),
        (("job", "a", "model"), "llama4", '"llama'),
        (("run", "engine"), "htsim", "did you mean"),
    ],
)
def test_a_hint_never_proposes_other_physics(path: tuple[str, ...], value: str, never: str) -> None:
    data: dict[str, Any] = {"job": {"a": {"model": "resnet50", "workers": 2}}}
    table = data
    for part in path[:-1]:
        table = table.setdefault(part, {})
    table[path[-1]] = value
    with pytest.raises(gt.ScenarioError) as caught:
        gt.Scenario.from_dict(data)
    hints = [fault["hint"] for fault in caught.value.errors if fault["loc"] == ".".join(path)]
    assert hints
    assert "does not model" in hints[0]
    assert never not in hints[0]


@pytest.mark.parametrize("key", ["pfc", "dcqcn", "spray", "torus", "nvls", "offload"])
def test_an_unknown_key_of_the_field_is_called_that(key: str) -> None:
    with pytest.raises(gt.ScenarioError) as caught:
        gt.Scenario.from_dict({"job": {"a": {"model": "resnet50", "workers": 2}}, "cluster": {key: True}})
    [fault] = caught.value.errors
    assert fault["code"] == "GT012"
    assert "does not model" in fault["hint"]


@pytest.mark.parametrize("family", ["llama4", "llama4_text", "gpt_oss", "mamba", "gemma3", "phi3"])
def test_a_family_that_is_lacking_is_called_that(family: str) -> None:
    with pytest.raises(FieldError) as caught:
        Architecture.of({"model_type": family})
    assert "does not model" in caught.value.hint
    assert "did you mean" not in caught.value.hint


words_of_a_name = st.text(st.characters(codec="ascii", categories=("Ll", "Lu", "Nd")), min_size=1, max_size=9)


@example(wanted="0", others=["O"])
@given(wanted=words_of_a_name, others=st.lists(words_of_a_name, max_size=8))
def test_a_suggestion_is_never_further_than_the_bound(wanted: str, others: list[str]) -> None:
    found = nearest(wanted, others)
    if found is not None:
        # Letters that look like digits count as these digits.
        wanted, found = (word.casefold().translate(LOOKALIKE) for word in (wanted, found))
        away = edits(wanted, found)
        assert away <= edits_allowed(wanted, found) <= MAX_EDITS
        assert [c for c in wanted if c.isdigit()] == [c for c in found if c.isdigit()]


@given(a=words_of_a_name, b=words_of_a_name, c=words_of_a_name)
def test_edits_are_symmetric_and_none_only_between_equal_words(a: str, b: str, c: str) -> None:
    assert edits(a, b) == edits(b, a)
    assert (edits(a, b) == 0) == (a == b)
    assert abs(len(a) - len(b)) <= edits(a, b) <= max(len(a), len(b))


@pytest.mark.parametrize(
    ("wanted", "others", "expected"),
    [
        ("fifi", ["fifo", "priority"], "fifo"),
        ("lama", ["llama", "mistral"], "llama"),
        ("cabel", ["cable"], "cable"),
        ("iteratoin", ["iterations", "workers"], "iterations"),
        ("Ring", ["ring"], "ring"),
        ("pfc", ["pcn"], None),
        ("dp", ["tp", "pp"], None),
        ("h100", ["a100"], None),
        ("llama4", ["llama", "llama3"], None),
        ("training", ["train"], None),
    ],
)
def test_what_is_a_misspelling(wanted: str, others: list[str], expected: str | None) -> None:
    assert nearest(wanted, others) == expected


def test_a_key_with_the_unit_of_other_programs_is_recognised() -> None:
    with pytest.raises(gt.ScenarioError) as caught:
        gt.Scenario.from_dict(
            {"job": {"a": {"model": "resnet50", "workers": 2}}, "cluster": {"link": {"rate_gbps": 9}}}
        )
    assert "`rate`" in caught.value.errors[0]["hint"]

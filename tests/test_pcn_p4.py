"""The P4 program of PCN's switch, as far as it can be checked without a P4 compiler."""

import re
from pathlib import Path

from gradtide import Scenario, units
from gradtide.announced import ACK, START, TIMEOUT
from gradtide.announced.sender import type_of_service
from gradtide.announced.wire import NUMBER

ROOT = Path(__file__).resolve().parent.parent
CODE = re.sub(r"//.*", "", (ROOT / "python/gradtide/announced/pcn.p4").read_text(encoding="utf-8"))
PAGE = (ROOT / "docs/models/pcn-p4.md").read_text(encoding="utf-8")
CONSTANTS = {name: int(value, 0) for name, value in re.findall(r"\bconst bit<\d+> (\w+) = (\w+);", CODE)}

# The keywords of P4_16 and the names of core.p4 and v1model.p4 that the program may use.
LANGUAGE = """
    action actions apply atomic bit bool const control default default_action else exact false header if in include
    inout key main out parser register select size state struct table transition
"""
ARCHITECTURE = """
    HashAlgorithm V1Switch accept core crc32 csum16 egress_spec emit enq_qdepth extract hash ingress_global_timestamp
    isValid mark_to_drop p4 packet_in packet_length packet_out read standard_metadata_t update_checksum v1model write
"""
DECLARED = re.compile(
    r"(?:\bbit<\d+>(?:>\(\w+\))?|\bbool|\b\w+_t|\bpacket_in|\bpacket_out"
    r"|\b(?:action|control|header|parser|state|struct|table))\s+(\w+)"
)


def fields(header: str) -> dict[str, int]:
    """Return the widths of a header's fields in bits, in the order of the fields."""
    (body,) = re.findall(rf"\bheader {header} {{(.*?)}}", CODE, flags=re.DOTALL)
    return {name: int(width) for width, name in re.findall(r"bit<(\d+)> (\w+);", body)}


def test_its_constants_are_those_of_gradtide() -> None:
    queue = Scenario.load("paper/pcn").to_dict()["cluster"]["queue"]
    assert f"{CONSTANTS['INITIAL']}pkt" == queue["threshold"]
    assert CONSTANTS["STEP"] == units.ANNOUNCED_STEP
    assert CONSTANTS["EXPIRE_US"] == 3 * units.parse_time(TIMEOUT) // 10**6
    # Ethernet, IPv4 and UDP headers, and the payload.
    assert 14 + 20 + 8 + NUMBER.size <= CONSTANTS["LARGEST_START_BYTES"]


def test_its_headers_have_the_standards_widths_and_the_announcement_of_figure_7() -> None:
    widths = [sum(fields(name).values()) for name in ("ethernet_t", "ipv4_t", "ports_t", "tcp_t")]
    assert widths == [14 * 8, 20 * 8, 4 * 8, 16 * 8]
    ipv4 = list(fields("ipv4_t").items())
    assert ipv4[:7] == [
        ("version", 4), ("ihl", 4), ("is_start", 1), ("is_ack", 1), ("fifths", 4), ("ecn", 2), ("total_length", 16),
    ]  # fmt: skip
    # The type of service begins with is_start, so its first bit is bit 7.
    assert (START, ACK) == (1 << 7, 1 << 6)
    assert type_of_service(10) == 1 << 7 | 10 // CONSTANTS["STEP"] << 2


def test_its_checksum_covers_the_other_fields_of_ipv4_in_their_order() -> None:
    (data,) = re.findall(r"update_checksum\(.*?{(.*?)}", CODE, flags=re.DOTALL)
    assert re.findall(r"hdr\.ipv4\.(\w+)", data) == [name for name in fields("ipv4_t") if name != "checksum"]


def test_every_identifier_is_declared() -> None:
    used = set(re.findall(r"\b[A-Za-z_]\w*", CODE))
    assert used - set(LANGUAGE.split()) - set(ARCHITECTURE.split()) == set(DECLARED.findall(CODE))


def test_the_page_names_every_table_and_register() -> None:
    names = re.findall(r"\btable (\w+)|\bregister<bit<\d+>>\(\w+\) (\w+);", CODE)
    assert len(names) == 7
    assert [name for pair in names for name in pair if name and f"PcnIngress.{name}" not in PAGE] == []

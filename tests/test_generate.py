"""What tools/generate.py writes follows from the registrations of the core."""

import subprocess
import sys
from pathlib import Path

from gradtide.scenario.keys.cluster import Transport
from gradtide.transports import ECN, PARAMETERS

ROOT = Path(__file__).parent.parent


def test_generated_files_are_up_to_date() -> None:
    done = subprocess.run([sys.executable, ROOT / "tools/generate.py", "--check"], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stdout + done.stderr


def test_every_parameter_of_a_congestion_control_has_a_key() -> None:
    assert {name for parameters in PARAMETERS.values() for name in parameters} <= Transport.model_fields.keys()
    assert PARAMETERS.keys() == ECN.keys()

"""`gradtide reproduce`: a paper's tables and figures, the published value beside ours.

Published values are constants of these files, each with its figure; ours are computed when the command runs. Nothing is
fitted.
"""

from gradtide.studies.reproduce.gao2020_ch4 import chapter4
from gradtide.studies.reproduce.gao2020_ch5 import chapter5
from gradtide.studies.reproduce.part import Part, Reproduction

PARTS = {
    "gao2020/ch4": Part("Gao (2020), chapter 4: table 3.1, figs 4.7 to 4.11", chapter4),
    "gao2020/ch5": Part("Gao (2020), chapter 5: tables 5.3 to 5.5, figs 5.5 to 5.19", chapter5),
}

__all__ = ["PARTS", "Part", "Reproduction"]

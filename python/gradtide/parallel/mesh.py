"""The mesh: number of ranks along each axis of parallelism, and checks whether a model can be divided over it.

Mesh(fsdp=16, tp=8).ranks  # 128
"""

from dataclasses import dataclass, fields
from math import prod

from gradtide.architecture import Architecture, FieldError

MOST_RANKS = 1_000_000


class MeshError(FieldError):
    """The mesh is invalid, or the model cannot be divided over it. `field` is the name of the axis."""


@dataclass(frozen=True)
class Mesh:
    """Number of ranks along each axis of parallelism, innermost axis first.

    Attributes:
        tp: tensor parallel ranks.
        cp: context parallel ranks.
        ep: ranks over which experts are spread; None if not given. They are ranks of cp, fsdp and dp, so `ep` does not
            increase the number of ranks.
        fsdp: data parallel ranks, sharded.
        dp: data parallel ranks, replicated.
        pp: pipeline parallel ranks.
    """

    tp: int = 1
    cp: int = 1
    ep: int | None = None
    fsdp: int = 1
    dp: int = 1
    pp: int = 1

    def __post_init__(self) -> None:
        for axis in AXES:
            ranks = getattr(self, axis)
            if ranks is not None and (type(ranks) is not int or not 1 <= ranks <= MOST_RANKS):
                raise MeshError(axis, f"`{axis}` is {ranks!r:.60}", f"write a whole number from 1 to {MOST_RANKS:,}")
        if self.ranks > MOST_RANKS:
            raise MeshError("parallel", f"the mesh has {self.ranks:,} ranks", f"write at most {MOST_RANKS:,}")
        if self.ep is not None and self.spread % self.ep:
            msg = f"experts are spread over ranks of cp, fsdp and dp, which are {self.spread}, and `ep` is {self.ep}"
            raise MeshError("ep", msg, f"let `ep` divide {self.spread}")

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return prod((self.tp, self.spread, self.pp))

    @property
    def data(self) -> int:
        """Number of data-parallel ranks, which train on different sequences."""
        return self.fsdp * self.dp

    @property
    def spread(self) -> int:
        """Number of ranks over which experts may be spread."""
        return self.cp * self.fsdp * self.dp

    @property
    def sizes(self) -> dict[str, int]:
        """Number of ranks along each axis, by name; `ep` is 1 if experts are not spread."""
        return {**{axis: getattr(self, axis) for axis in ("tp", "cp", "fsdp", "dp", "pp")}, "ep": self.experts}

    @property
    def experts(self) -> int:
        """Number of ranks over which experts are spread; 1 if they are not."""
        return self.ep or 1

    def check(self, model: Architecture, tokens: int, chunks: int = 1, ranks: int | None = None) -> None:
        """Raise an error if the model cannot be divided over the mesh.

        Args:
            model: the model.
            tokens: number of tokens of a sequence.
            chunks: number of virtual stages per rank.
            ranks: number of ranks of the cluster, if known.

        Raises:
            MeshError: with the axis that does not fit, and valid values.
        """
        if ranks is not None and self.ranks != ranks:
            sizes = " x ".join(f"{axis} {getattr(self, axis)}" for axis in ("tp", "cp", "fsdp", "dp", "pp"))
            raise MeshError(
                "parallel", f"{sizes} is {self.ranks} ranks, and there are {ranks}", "change one of the two"
            )
        stages = self.pp * chunks
        if stages > len(model.blocks):
            hint = f"write at most {len(model.blocks) // chunks or 1}"
            raise MeshError("pp", f"{len(model.blocks)} blocks cannot fill {stages} stages", hint)
        if tokens % self.cp:
            raise MeshError("cp", f"{self.cp} ranks cannot share {tokens} tokens equally", f"let it divide {tokens}")
        self._check_tensor(model)
        self._check_experts(model)

    def _check_tensor(self, model: Architecture) -> None:
        tp = self.tp
        for core in dict.fromkeys(block.attention for block in model.blocks):
            if core.heads % tp:
                hint = f"let it divide {core.heads}"
                raise MeshError("tp", f"{tp} ranks cannot share {core.heads} heads of queries equally", hint)
            # With fewer key/value heads than ranks, each head is replicated on several ranks.
            if core.kv_heads % tp and tp % core.kv_heads:
                hint = f"let it divide {core.kv_heads}, or be a multiple of it"
                raise MeshError("tp", f"{tp} ranks cannot share {core.kv_heads} heads of keys equally", hint)
        for module in model.modules():
            if module.split in ("columns", "rows"):
                size = module.outputs if module.split == "columns" else module.inputs
                if size % tp:
                    raise MeshError("tp", f"{tp} ranks cannot share {size} of {module.name}", f"let it divide {size}")

    def _check_experts(self, model: Architecture) -> None:
        counts = {module.experts for module in model.modules()} - {1}
        if not counts and self.experts > 1:
            raise MeshError("ep", f"`ep` is {self.ep}, and the model has no experts", "leave `ep` out")
        if counts and self.ep is None:
            hint = "write ep = 8 to spread them, or ep = 1 to have all of them on every rank"
            raise MeshError("ep", f"`ep` is missing for {max(counts)} experts", hint)
        for experts in counts:
            if experts % self.experts:
                msg = f"{self.experts} ranks cannot share {experts} experts equally"
                raise MeshError("ep", msg, f"let `ep` divide {experts}")


AXES = tuple(field.name for field in fields(Mesh))


def split(blocks: int, stages: int) -> list[int]:
    """Return the number of blocks of each virtual stage, in order.

    The remainder goes to middle stages, because the first stage also has the embedding and the last stage the head.
    """
    least, left = divmod(blocks, stages)
    first = (stages - left + 1) // 2
    return [least + (first <= stage < first + left) for stage in range(stages)]

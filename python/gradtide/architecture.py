"""Reads the architecture of a language model from its Hugging Face configuration: parameters, and FLOPs of a sequence.

    Architecture.of({"model_type": "llama", "hidden_size": 4096, …}).parameters

The module is longer than 600 lines because it reads the fields of every supported model family.

A configuration names its family (`model_type`), and one function per family builds the `Architecture`. Names and shapes
of modules are those of the transformers library.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, NamedTuple

from gradtide.errors import did_you_mean
from gradtide.known import lacking

Split = Literal["columns", "rows", "vocabulary", ""]


FAMILY = "model_type"
"""The field that names the family. A JSON document with this field is read as a configuration."""


class FieldError(ValueError):
    """A field of a configuration is missing or wrong.

    Attributes:
        field: name of the field.
        hint: the fix.
    """

    def __init__(self, field: str, msg: str, hint: str) -> None:
        super().__init__(f"{msg}; {hint}")
        self.field, self.msg, self.hint = field, msg, hint


class Module(NamedTuple):
    """A module that owns parameters.

    Attributes:
        name: the module's name in transformers.
        shapes: shapes of the module's parameters; with several experts, of the parameters of one expert.
        inputs: number of elements that the module reads per token.
        outputs: number of elements that the module writes per token.
        split: how tensor parallelism divides the module (Shoeybi et al. 2019, section 3): by its outputs (`columns`),
            by its inputs (`rows`), by `vocabulary`, or not at all.
        experts: number of copies of the module, one for each expert.
        active: number of copies that a token passes through.
        is_table: whether the module's matrix is a lookup table, which needs no matrix product.
    """

    name: str
    shapes: tuple[tuple[int, ...], ...]
    inputs: int
    outputs: int
    split: Split = ""
    experts: int = 1
    active: int = 1
    is_table: bool = False

    @property
    def parameters(self) -> int:
        """Number of parameters of all copies."""
        return self.experts * sum(map(prod, self.shapes))

    @property
    def active_parameters(self) -> int:
        """Number of parameters that a token passes through."""
        return self.active * sum(map(prod, self.shapes))

    @property
    def flops_per_token(self) -> int:
        """FLOPs of the forward pass per token: a multiplication and an addition for each weight of a matrix."""
        if self.is_table:
            return 0
        return 2 * self.active * sum(prod(shape) for shape in self.shapes if len(shape) > 1)


class Attention(NamedTuple):
    """The part of attention without parameters: scores, and weighted sums of values.

    Attributes:
        heads: number of query heads.
        kv_heads: number of heads of keys and values.
        key_size: elements per head of a query or a key.
        value_size: elements per head of a value.
        window: largest number of tokens that a token attends to; `None` for all.
    """

    heads: int
    kv_heads: int
    key_size: int
    value_size: int
    window: int | None = None

    def flops(self, tokens: int) -> int:
        """Return the FLOPs of the forward pass of a sequence, for all pairs of tokens in the window, also masked pairs.

        FlopCounterMode and Megatron's formulas also count masked pairs. A kernel that skips them does half of the work.
        """
        seen = tokens if self.window is None else min(tokens, self.window)
        return 2 * tokens * seen * self.heads * (self.key_size + self.value_size)


class Block(NamedTuple):
    """A transformer block.

    Attributes:
        modules: the modules of the block, in the order in which they run.
        attention: the attention of the block.
        output: name of the module that consumes the output of attention.
    """

    modules: tuple[Module, ...]
    attention: Attention
    output: str


class Work(NamedTuple):
    """The work of a module in the forward pass of a sequence.

    Attributes:
        name: name of the module.
        parameters: number of parameters that the module owns.
        flops: FLOPs of the forward pass.
        elements: number of elements that the module reads and writes besides its parameters.
    """

    name: str
    parameters: int
    flops: int
    elements: int


@dataclass(frozen=True)
class Architecture:
    """A language model.

    Attributes:
        family: `model_type` of its configuration.
        hidden: number of elements per token between blocks.
        vocabulary: number of different tokens.
        longest: number of tokens of the longest sequence if positions are learned; `None` if positions are computed.
        before: modules before the first block.
        blocks: the blocks, in order.
        after: modules after the last block.
        tied: whether the head shares the embedding's matrix, so that the head has no parameters.
    """

    family: str
    hidden: int
    vocabulary: int
    longest: int | None
    before: tuple[Module, ...]
    blocks: tuple[Block, ...]
    after: tuple[Module, ...]
    tied: bool

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "Architecture":
        """Return the architecture of a configuration.

        Raises:
            FieldError: if the family is unknown, or a field is missing or wrong.
        """
        family = config.get(FAMILY)
        if family is None:
            raise FieldError(FAMILY, f"`{FAMILY}` is missing", f"write one of {', '.join(FAMILIES)}")
        if not isinstance(family, str) or family not in FAMILIES:
            raise _unknown_family(family)
        fields = Fields(config)
        found = FAMILIES[family](fields)
        fields.refuse_what_was_not_read(family)
        return found

    def modules(self) -> Iterator[Module]:
        """Yield every module that owns parameters, input side first."""
        yield from self.before
        for block in self.blocks:
            yield from block.modules
        yield from self.after

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return sum(module.parameters for module in self.modules())

    @property
    def active_parameters(self) -> int:
        """Number of parameters that a token passes through: fewer than `parameters` if the model has experts."""
        return sum(module.active_parameters for module in self.modules())

    def works(self, tokens: int) -> Iterator[Work]:
        """Yield the work of each module in the forward pass of one sequence of `tokens` tokens, input side first.

        The FLOPs of attention, which owns no parameters, are added to the module that consumes its output. The FLOPs of
        a tied head are added to the last module.
        """
        attends = {block.output: block.attention.flops(tokens) for block in self.blocks}
        last = self.after[-1].name
        head = {last: 2 * tokens * self.hidden * self.vocabulary} if self.tied else {}
        for module in self.modules():
            flops = tokens * module.flops_per_token + attends.get(module.name, 0) + head.get(module.name, 0)
            moved = tokens * module.active * (module.inputs + module.outputs)
            yield Work(module.name, module.parameters, flops, moved)

    def forward_flops(self, tokens: int) -> int:
        """Return the FLOPs of the forward pass of one sequence of `tokens` tokens."""
        return sum(work.flops for work in self.works(tokens))


PAGE = "docs/own-model.md"
"""The page that lists the supported families, and the alternatives for other models."""

EXPERTS = "experts"

STRUCTURE: dict[str, str] = {
    **dict.fromkeys(
        (
            "num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts", "num_experts_per_tok",
            "num_experts_per_token", "experts_per_token", "moe_k", "moe_intermediate_size", "n_shared_experts",
            "num_shared_experts", "shared_expert_intermediate_size", "first_k_dense_replace", "moe_layer_freq",
            "decoder_sparse_step", "mlp_only_layers", "moe_layers", "interleave_moe_layer_step",
            "intermediate_size_mlp", "expert_layer_period", "moe_layer_start_index", "moe_layer_interval",
        ),
        EXPERTS,
    ),
    **dict.fromkeys(
        (
            "sliding_window", "sliding_window_size", "sliding_window_pattern", "max_window_layers", "layer_types",
            "global_attn_every_n_layers", "attention_chunk_size", "full_attention_interval", "attn_layer_period",
            "attention_layers", "hybrid_override_pattern", "layers_block_type", "cross_attention_layers",
            "attention_types",
        ),
        "layers of several kinds",
    ),
    **dict.fromkeys(
        ("mamba_d_state", "ssm_cfg", "state_size", "ssm_state_size", "linear_num_value_heads", "linear_attn_config"),
        "recurrent layers",
    ),
    **dict.fromkeys(
        ("text_config", "vision_config", "audio_config", "encoder_layers", "decoder_layers"),
        "other parts",
    ),
    **dict.fromkeys(("hidden_size_per_layer_input", "num_kv_shared_layers", "laurel_rank"), "layers that share parts"),
}  # fmt: skip
"""Configuration fields of features that change a model's parameters or a token's path, each with its feature."""

ALIKE = ("full_attention", "attention")
"""Values in the field `layer_types` that every family supports."""

MOST = 10**9
"""Largest accepted number in a field: far above every real model, and small enough that times stay exact."""
MOST_BLOCKS = 5_000


class Fields:
    """Reads the fields of a configuration. A missing or wrong field raises a `FieldError` with the field's name."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config
        self._read: set[str] = set()

    def _value(self, name: str) -> Any:
        self._read.add(name)
        return self._config.get(name)

    def has(self, name: str) -> bool:
        """Whether the field is present and not `null`."""
        return self._value(name) is not None

    def refuse_what_was_not_read(self, family: str) -> None:
        """Raise an error if a field of `STRUCTURE` is set that the family does not read and would silently ignore."""
        has_experts = any(STRUCTURE.get(name) == EXPERTS for name in self._read)
        for name, what in STRUCTURE.items():
            value = self._config.get(name)
            if name in self._read or not value or (what == EXPERTS and has_experts):
                continue
            if self._is_idle(name, value, family):
                continue
            msg = f"gradtide does not model `{name}` ({what}) of {family}"
            raise FieldError(name, msg, f"{PAGE} lists what it models; for another model write a profile of it")

    def _is_idle(self, name: str, value: Any, family: str) -> bool:
        """Whether a field has no effect because of its value, or because another field disables the feature."""
        if name in ("sliding_window", "max_window_layers"):
            # In Qwen, sliding windows are off by default; if they are on, layers from `max_window_layers` on have a
            # window.
            is_on = self._config.get("use_sliding_window", not family.startswith("qwen"))
            first, layers = self._config.get("max_window_layers"), self._config.get("num_hidden_layers")
            is_late = is_on and isinstance(first, int) and isinstance(layers, int) and first >= layers
            return not is_on or self._config.get("sliding_window") is None or (is_late and not self.has("layer_types"))
        if name == "layer_types" and isinstance(value, list):
            has_window = "sliding_window" in self._read and self._config.get("sliding_window") is not None
            return all(one in (("sliding_attention",) if has_window else ALIKE) for one in value)
        return False

    def text(self, name: str) -> str:
        """Return the text in a field; empty if the field is missing."""
        value = self._value(name)
        return value if isinstance(value, str) else ""

    def count(self, name: str, default: int | None = None, *, least: int = 1, most: int = MOST) -> int:
        """Return the whole number in a field; a field that is `null` counts as missing."""
        value = self._value(name)
        if value is None:
            if default is None:
                raise FieldError(name, f"`{name}` is missing", "copy the whole configuration of the model")
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise FieldError(name, f"`{name}` is {value!r:.60}", f"write a whole number from {least} to {most:,}")
        return value

    def maybe(self, name: str) -> int | None:
        """Return the whole number in a field; `None` if the field is missing."""
        return self.count(name) if self._value(name) is not None else None

    def flag(self, name: str, default: bool = False) -> bool:
        """Return the boolean in a field; `default` if the field is missing."""
        value = self._value(name)
        if value is not None and not isinstance(value, bool):
            raise FieldError(name, f"`{name}` is {value!r:.60}", "write true or false")
        return default if value is None else value

    def counts(self, name: str) -> Sequence[int]:
        """Return the list of whole numbers, from 0 on, in a field; empty if the field is missing."""
        value = self._value(name) or []
        if not isinstance(value, list) or not all(type(one) is int and one >= 0 for one in value):
            raise FieldError(name, f"`{name}` is {value!r:.60}", "write a list of whole numbers")
        return value

    def heads(self, name: str, of: str, size: int) -> int:
        """Return the number of heads in field `name`, which must divide `size` equally."""
        heads = self.count(name)
        if size % heads:
            raise FieldError(name, f"{heads} heads do not divide `{of}` = {size}", f"let `{name}` divide `{of}`")
        return heads


def _unknown_family(family: object) -> FieldError:
    """Return the error for an unsupported family, with a similar name unless the family really exists."""
    known = f"known are {', '.join(FAMILIES)}"
    if not isinstance(family, str):
        return FieldError(FAMILY, f"unknown family {family!r:.60}", known)
    kind = "family" if lacking("family", family) else "model"
    is_lacking = lacking(kind, family) is not None
    msg = f"gradtide does not model {family:.60} yet" if is_lacking else f"unknown family {family!r:.60}"
    otherwise = f"{known}; {PAGE} describes how to write a profile of any other model"
    return FieldError(FAMILY, msg, did_you_mean(family, FAMILIES, otherwise, "{}", kind=kind))


def _linear(name: str, inputs: int, outputs: int, split: Split, *, bias: bool = False) -> Module:
    return Module(name, ((outputs, inputs), *(((outputs,),) if bias else ())), inputs, outputs, split)


def _table(name: str, rows: int, size: int, split: Split = "") -> Module:
    return Module(name, ((rows, size),), size, size, split, is_table=True)


def _norm(name: str, size: int, *, bias: bool = False) -> Module:
    return Module(name, ((size,),) * (2 if bias else 1), size, size)


def _gated(name: str, hidden: int, inner: int, *, bias: bool = False) -> list[Module]:
    """Return the modules of Llama's feed-forward network (Shazeer 2020, SwiGLU): two products up, one down."""
    return [
        _linear(f"{name}.gate_proj", hidden, inner, "columns", bias=bias),
        _linear(f"{name}.up_proj", hidden, inner, "columns", bias=bias),
        _linear(f"{name}.down_proj", inner, hidden, "rows", bias=bias),
    ]


def _experts(name: str, hidden: int, inner: int, experts: int, active: int) -> list[Module]:
    """Return the router, and the gated feed-forward network of an expert."""
    return [
        Module(f"{name}.gate", ((experts, hidden),), hidden, experts),
        Module(f"{name}.experts.gate_up_proj", ((2 * inner, hidden),), hidden, 2 * inner, "columns", experts, active),
        Module(f"{name}.experts.down_proj", ((hidden, inner),), inner, hidden, "rows", experts, active),
    ]


def _grouped(name: str, hidden: int, attention: Attention, *, bias: bool, out_bias: bool, norms: bool) -> list[Module]:
    """Return the modules of grouped-query attention, where query heads share keys and values (Ainslie et al. 2023)."""
    queries, values = attention.heads * attention.key_size, attention.kv_heads * attention.value_size
    norm_names = ("q_norm", "k_norm") if norms else ()
    return [
        _linear(f"{name}.q_proj", hidden, queries, "columns", bias=bias),
        _linear(f"{name}.k_proj", hidden, values, "columns", bias=bias),
        _linear(f"{name}.v_proj", hidden, values, "columns", bias=bias),
        *(_norm(f"{name}.{one}", attention.key_size) for one in norm_names),
        _linear(f"{name}.o_proj", queries, hidden, "rows", bias=out_bias),
    ]


def _latent(name: str, hidden: int, fields: Fields) -> tuple[list[Module], Attention]:
    """Return the modules of attention over compressed keys and values (DeepSeek-V2, section 2.1)."""
    heads = fields.count("num_attention_heads")
    rotary, plain = fields.count("qk_rope_head_dim"), fields.count("qk_nope_head_dim")
    values, rank, query_rank = fields.count("v_head_dim"), fields.count("kv_lora_rank"), fields.maybe("q_lora_rank")
    bias = fields.flag("attention_bias")
    attention = Attention(heads, heads, rotary + plain, values)
    queries = heads * attention.key_size
    if query_rank is None:
        first = [_linear(f"{name}.q_proj", hidden, queries, "columns")]
    else:
        first = [
            _linear(f"{name}.q_a_proj", hidden, query_rank, "", bias=bias),
            _norm(f"{name}.q_a_layernorm", query_rank),
            _linear(f"{name}.q_b_proj", query_rank, queries, "columns"),
        ]
    return [
        *first,
        _linear(f"{name}.kv_a_proj_with_mqa", hidden, rank + rotary, "", bias=bias),
        _norm(f"{name}.kv_a_layernorm", rank),
        _linear(f"{name}.kv_b_proj", rank, heads * (plain + values), "columns"),
        _linear(f"{name}.o_proj", heads * values, hidden, "rows", bias=bias),
    ], attention


def _attention(fields: Fields) -> Attention:
    hidden = fields.count("hidden_size")
    size = fields.maybe("head_dim")
    heads = fields.count("num_attention_heads")
    if size is None:
        size = hidden // fields.heads("num_attention_heads", "hidden_size", hidden)
    kv_heads = fields.count("num_key_value_heads", heads)
    if heads % kv_heads:
        msg = f"{kv_heads} heads of keys do not divide the {heads} heads of queries"
        raise FieldError("num_key_value_heads", msg, "let it divide `num_attention_heads`")
    return Attention(heads, kv_heads, size, size)


def _head(hidden: int, vocabulary: int, tied: bool) -> tuple[Module, ...]:
    """Return the output projection to the vocabulary; nothing if it is tied to the embedding."""
    return () if tied else (_linear("lm_head", hidden, vocabulary, "vocabulary"),)


Part = Callable[[int, str], tuple[list[Module], Attention]]
"""Function from a block's index and a prefix of module names to the modules of its attention, and the `Attention`."""


def _decoder(
    fields: Fields, attention: Part, feed_forward: Callable[[int, str], list[Module]], *, tied: bool = False
) -> Architecture:
    """Return a decoder like Llama's, with a norm before each attention, each feed-forward network, and the head."""
    hidden, vocabulary = fields.count("hidden_size"), fields.count("vocab_size")
    blocks = []
    for index in range(fields.count("num_hidden_layers", most=MOST_BLOCKS)):
        name = f"model.layers.{index}"
        modules, core = attention(index, f"{name}.self_attn")
        blocks.append(
            Block(
                (
                    _norm(f"{name}.input_layernorm", hidden),
                    *modules,
                    _norm(f"{name}.post_attention_layernorm", hidden),
                    *feed_forward(index, f"{name}.mlp"),
                ),
                core,
                f"{name}.self_attn.o_proj",
            )
        )
    tied = fields.flag("tie_word_embeddings", tied)
    return Architecture(
        fields.text(FAMILY),
        hidden,
        vocabulary,
        None,
        (_table("model.embed_tokens", vocabulary, hidden, "vocabulary"),),
        tuple(blocks),
        (_norm("model.norm", hidden), *_head(hidden, vocabulary, tied)),
        tied,
    )


def _attending(
    hidden: int, core: Attention, *, bias: bool = False, out_bias: bool = False, norms: bool = False
) -> Part:
    """Return a function that gives every block the same grouped-query attention."""
    return lambda _index, name: (_grouped(name, hidden, core, bias=bias, out_bias=out_bias, norms=norms), core)


def _feeding(hidden: int, inner: int, *, bias: bool = False) -> Callable[[int, str], list[Module]]:
    """Return a function that gives every block the same gated feed-forward network."""
    return lambda _index, name: _gated(name, hidden, inner, bias=bias)


def _llama(fields: Fields) -> Architecture:
    hidden, inner, core = fields.count("hidden_size"), fields.count("intermediate_size"), _attention(fields)
    bias, mlp_bias = fields.flag("attention_bias"), fields.flag("mlp_bias")
    return _decoder(fields, _attending(hidden, core, bias=bias, out_bias=bias), _feeding(hidden, inner, bias=mlp_bias))


def _mistral(fields: Fields) -> Architecture:
    hidden, inner = fields.count("hidden_size"), fields.count("intermediate_size")
    core = _attention(fields)._replace(window=fields.maybe("sliding_window"))
    return _decoder(fields, _attending(hidden, core), _feeding(hidden, inner))


def _mixtral(fields: Fields) -> Architecture:
    hidden, inner = fields.count("hidden_size"), fields.count("intermediate_size")
    core = _attention(fields)._replace(window=fields.maybe("sliding_window"))
    experts, active = _routing(fields, "num_local_experts")
    return _decoder(
        fields,
        _attending(hidden, core),
        lambda index, name: _experts(name, hidden, inner, experts, active),
    )


def _qwen2(fields: Fields) -> Architecture:
    hidden, inner, core = fields.count("hidden_size"), fields.count("intermediate_size"), _attention(fields)
    return _decoder(fields, _attending(hidden, core, bias=True), _feeding(hidden, inner))


def _qwen3(fields: Fields) -> Architecture:
    hidden, inner, core = fields.count("hidden_size"), fields.count("intermediate_size"), _attention(fields)
    bias = fields.flag("attention_bias")
    return _decoder(fields, _attending(hidden, core, bias=bias, out_bias=bias, norms=True), _feeding(hidden, inner))


def _qwen2_moe(fields: Fields) -> Architecture:
    hidden, core = fields.count("hidden_size"), _attention(fields)
    shared = fields.count("shared_expert_intermediate_size")
    sparse = _sparse(fields)

    def feed_forward(index: int, name: str) -> list[Module]:
        found = sparse(index, name)
        if found is None:
            return _gated(name, hidden, fields.count("intermediate_size"))
        gate = Module(f"{name}.shared_expert_gate", ((1, hidden),), hidden, 1)
        return [*found, *_gated(f"{name}.shared_expert", hidden, shared), gate]

    bias = fields.flag("qkv_bias", True)
    return _decoder(fields, _attending(hidden, core, bias=bias), feed_forward)


def _qwen3_moe(fields: Fields) -> Architecture:
    hidden, core = fields.count("hidden_size"), _attention(fields)
    bias, sparse = fields.flag("attention_bias"), _sparse(fields)

    def feed_forward(index: int, name: str) -> list[Module]:
        found = sparse(index, name)
        return _gated(name, hidden, fields.count("intermediate_size")) if found is None else found

    return _decoder(fields, _attending(hidden, core, bias=bias, out_bias=bias, norms=True), feed_forward)


def _sparse(fields: Fields) -> Callable[[int, str], list[Module] | None]:
    """Return a function that returns the experts of a Qwen block; `None` for a block without experts."""
    hidden, inner = fields.count("hidden_size"), fields.count("moe_intermediate_size")
    experts, active = _routing(fields, "num_experts")
    every, dense = fields.count("decoder_sparse_step", 1), fields.counts("mlp_only_layers")

    def of(index: int, name: str) -> list[Module] | None:
        if index in dense or (index + 1) % every:
            return None
        return _experts(name, hidden, inner, experts, active)

    return of


def _routing(fields: Fields, name: str) -> tuple[int, int]:
    """Return the number of experts in field `name`, and the number of experts that a token passes through.

    From version 5 on, transformers writes `num_local_experts` instead of `name` for every family.
    """
    name = "num_local_experts" if fields.has("num_local_experts") else name
    experts, active = fields.count(name), fields.count("num_experts_per_tok")
    if active > experts:
        raise FieldError(
            "num_experts_per_tok", f"a token passes {active} of {experts} experts", f"write at most `{name}`"
        )
    return experts, active


def _deepseek(fields: Fields) -> Architecture:
    hidden, inner = fields.count("hidden_size"), fields.count("moe_intermediate_size")
    experts, active = _routing(fields, "n_routed_experts")
    shared = fields.count("n_shared_experts", 0, least=0)
    dense = fields.count("first_k_dense_replace", 0, least=0)
    if fields.count("moe_layer_freq", 1) != 1:
        raise FieldError("moe_layer_freq", "only a model with experts in every later layer is known", "write 1")

    def feed_forward(index: int, name: str) -> list[Module]:
        if index < dense:
            return _gated(name, hidden, fields.count("intermediate_size"))
        beside = _gated(f"{name}.shared_experts", hidden, inner * shared) if shared else []
        return [*_experts(name, hidden, inner, experts, active), *beside]

    return _decoder(fields, lambda index, name: _latent(name, hidden, fields), feed_forward)


def _gpt2(fields: Fields) -> Architecture:
    hidden, vocabulary, longest = fields.count("n_embd"), fields.count("vocab_size"), fields.count("n_positions")
    inner = fields.count("n_inner", 4 * hidden)
    heads = fields.heads("n_head", "n_embd", hidden)
    core = Attention(heads, heads, hidden // heads, hidden // heads)
    blocks = []
    for index in range(fields.count("n_layer", most=MOST_BLOCKS)):
        name = f"transformer.h.{index}"
        modules = (
            _norm(f"{name}.ln_1", hidden, bias=True),
            _linear(f"{name}.attn.c_attn", hidden, 3 * hidden, "columns", bias=True),
            _linear(f"{name}.attn.c_proj", hidden, hidden, "rows", bias=True),
            _norm(f"{name}.ln_2", hidden, bias=True),
            _linear(f"{name}.mlp.c_fc", hidden, inner, "columns", bias=True),
            _linear(f"{name}.mlp.c_proj", inner, hidden, "rows", bias=True),
        )
        blocks.append(Block(modules, core, f"{name}.attn.c_proj"))
    tied = fields.flag("tie_word_embeddings", True)
    before = (
        _table("transformer.wte", vocabulary, hidden, "vocabulary"),
        _table("transformer.wpe", longest, hidden),
    )
    after = (_norm("transformer.ln_f", hidden, bias=True), *_head(hidden, vocabulary, tied))
    return Architecture(fields.text(FAMILY), hidden, vocabulary, longest, before, tuple(blocks), after, tied)


def _gpt_neox(fields: Fields) -> Architecture:
    hidden, vocabulary = fields.count("hidden_size"), fields.count("vocab_size")
    inner, bias = fields.count("intermediate_size"), fields.flag("attention_bias", True)
    heads = fields.heads("num_attention_heads", "hidden_size", hidden)
    core = Attention(heads, heads, hidden // heads, hidden // heads)
    blocks = []
    for index in range(fields.count("num_hidden_layers", most=MOST_BLOCKS)):
        name = f"gpt_neox.layers.{index}"
        modules = (
            _norm(f"{name}.input_layernorm", hidden, bias=True),
            _linear(f"{name}.attention.query_key_value", hidden, 3 * hidden, "columns", bias=bias),
            _linear(f"{name}.attention.dense", hidden, hidden, "rows", bias=bias),
            _norm(f"{name}.post_attention_layernorm", hidden, bias=True),
            _linear(f"{name}.mlp.dense_h_to_4h", hidden, inner, "columns", bias=True),
            _linear(f"{name}.mlp.dense_4h_to_h", inner, hidden, "rows", bias=True),
        )
        blocks.append(Block(modules, core, f"{name}.attention.dense"))
    tied = fields.flag("tie_word_embeddings")
    return Architecture(
        fields.text(FAMILY),
        hidden,
        vocabulary,
        None,
        (_table("gpt_neox.embed_in", vocabulary, hidden, "vocabulary"),),
        tuple(blocks),
        (_norm("gpt_neox.final_layer_norm", hidden, bias=True), *_head(hidden, vocabulary, tied)),
        tied,
    )


FAMILIES: dict[str, Callable[[Fields], Architecture]] = {
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "qwen2_moe": _qwen2_moe,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
}
"""The function that builds the architecture of each supported family, by `model_type`."""

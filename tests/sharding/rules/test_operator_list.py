"""Every standard operator has a rule, or a reason why it is always computed whole."""

import onnx.defs

import sharding.rules  # noqa: F401 - registers the rules
from sharding.rules.base import RULES, NodeView
from sharding.search.exchanges import exchanging_options
from sharding.slices.placement import Split

NEWEST = 24
"""The newest opset whose operators are listed here."""

WHOLE = {
    "its output is as long as the data says, or in the order that the data says": (
        *("NonMaxSuppression", "NonZero", "Unique"),
    ),
    "it makes a value of a shape, a few numbers or nothing, which has nothing to split": (
        *("BlackmanWindow", "Constant", "ConstantOfShape", "EyeLike", "HammingWindow", "HannWindow"),
        *("MelWeightMatrix", "Range"),
    ),
    "it draws random numbers: the first rank draws for all": (
        *("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform"),
        "RandomUniformLike",
    ),
    "sequences and optional values have no axes": (
        *("ConcatFromSequence", "Optional", "OptionalGetElement", "OptionalHasElement", "SequenceAt"),
        *("SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert", "SequenceLength"),
        *("SequenceMap", "SplitToSequence"),
    ),
    "it holds graphs, which are copied as they are": ("If", "Loop", "Scan"),
    "texts and files are not numbers": (
        *("ImageDecoder", "RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit"),
        "TfIdfVectorizer",
    ),
    "its indices count in the whole tensor": ("MaxUnpool",),
    "its scale is that of the whole tensor: only `sharding.search.exchanges` can split it": (
        "DynamicQuantizeLinear",
    ),
    "it is a loss, of training": ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"),
}


def test_every_standard_operator_has_a_rule_or_a_reason() -> None:
    operators = {
        schema.name
        for schema in onnx.defs.get_all_schemas_with_history()
        if not schema.domain and schema.since_version <= NEWEST
    }
    ruled = {name for domain, name in RULES if not domain}
    reasoned = [name for names in WHOLE.values() for name in names]
    assert len(reasoned) == len(set(reasoned)) and not ruled.intersection(reasoned)
    assert operators - ruled - set(reasoned) == set()


def test_dynamic_quantization_is_split_by_exchange() -> None:
    view = NodeView(
        "DynamicQuantizeLinear", "", 13, 2, {}, [["n", 8]], [None], [None], [True], [["n", 8], [], []]
    )
    assert [option.inputs for option in exchanging_options(view)] == [(Split(1),)]

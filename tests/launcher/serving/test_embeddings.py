"""Embeddings, asked by OpenAI's own client: they are those of plain ONNX Runtime, one text at a time, pooled
by the poolings' definitions."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

import launcher
from launcher.errors import ConfigError
from launcher.job.job import Job
from launcher.serving.context import Call
from launcher.serving.embedding.finding import find_encoder
from launcher.serving.embedding.pooling import POOLINGS, pooled
from launcher.serving.limits import ServeLimits
from launcher.serving.metrics import Metrics
from launcher.serving.models import Repository
from launcher.serving.refusals import RefusalError
from launcher.serving.tensor_model import TensorModel
from launcher.serving.upkeep.versions import check_alike
from tests.launcher.serving.encoders_made import LONGEST, WIDTH, Plain, save_encoder, save_folder
from tests.launcher.serving.playing import Played
from tests.launcher.serving.running import Running, running
from tests.ranks.threads import until

TEXTS = ["hello", "the quick brown fox", "cats sleep all day", "a dog", "the lazy dog jumps over a fox"]
_NEAR = 1e-5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_folder(tmp_path_factory.mktemp("encoder") / "tiny", kinds=True)


@pytest.fixture(scope="module")
def plain(folder: Path) -> Plain:
    return Plain(folder)


def model_of(folder: Path, metrics: Metrics, ranks: int = 1) -> TensorModel:
    found = find_encoder(Job(model=folder), None)
    assert found is not None and found.job.model is not None
    graph = found.job.model
    return TensorModel(
        folder.name, ServeLimits(), metrics, encoder=found.encoder,
        open_group=lambda: launcher.start(graph, ranks=ranks, launcher="local", threads=1),
    )  # fmt: skip


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Running]:
    """On two ranks."""
    metrics = Metrics()
    with running(model_of(folder, metrics, ranks=2), metrics=metrics) as found:
        yield found


@pytest.fixture(scope="module")
def client(served: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="any", max_retries=0, timeout=60) as client:
        yield client


def vectors(answer: openai.types.CreateEmbeddingResponse) -> Any:
    assert [one.index for one in answer.data] == list(range(len(answer.data)))
    return np.array([one.embedding for one in answer.data])


@pytest.mark.parametrize("form", ["float", "base64", None])
def test_texts_in_batches_are_what_each_is_alone(client: openai.OpenAI, plain: Plain, form: Any) -> None:
    more = {} if form is None else {"encoding_format": form}
    answer = client.embeddings.create(model="tiny", input=TEXTS, **more)
    if form == "base64":  # asked for by name, the client hands it on as it is
        raw = [np.frombuffer(base64.b64decode(one.embedding), "<f4") for one in answer.data]
        found = np.array(raw)
    else:
        found = vectors(answer)
    expected = np.array([plain.vector(text) for text in TEXTS])
    assert np.abs(found - expected).max() < _NEAR
    tokens = sum(len(plain.tokenizer.encode(text).ids) for text in TEXTS)
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (tokens, tokens)
    assert answer.model == "tiny" and answer.object == "list"


def test_several_texts_are_joined_in_one_run(served: Running, client: openai.OpenAI) -> None:
    model: Any = served.context.repository.get("tiny")
    assert model.encoder.joins and model.encoder.pads
    before = model.numbers.runs
    client.embeddings.create(model="tiny", input=TEXTS)
    assert model.numbers.runs == before + 1
    client.embeddings.create(model="tiny", input=TEXTS * 14)  # 70 texts, at most 32 in a run
    assert model.numbers.runs == before + 4


def test_tokens_and_answers_under_way_are_counted(
    served: Running, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    grown: list[int] = []
    monkeypatch.setattr(Call, "grow", lambda call, size: grown.append(size))
    answer = client.embeddings.create(model="tiny", input=TEXTS)
    until(lambda: served.context.latest[0].get("prompt_tokens") == answer.usage.prompt_tokens)
    [vectors, body] = grown
    assert vectors == 4 * len(TEXTS) * len(answer.data[0].embedding) < body


def test_all_forms_of_input(client: openai.OpenAI, plain: Plain) -> None:
    ids = [plain.tokenizer.encode(text).ids for text in TEXTS[:2]]
    expected = np.array([plain.vector(text) for text in TEXTS[:2]])
    one = vectors(client.embeddings.create(model="tiny", input=TEXTS[0]))
    assert one.shape == (1, WIDTH) and np.abs(one - expected[:1]).max() < _NEAR
    assert np.abs(vectors(client.embeddings.create(model="tiny", input=ids[0])) - expected[:1]).max() < _NEAR
    assert np.abs(vectors(client.embeddings.create(model="tiny", input=ids)) - expected).max() < _NEAR
    mixed: Any = [ids[0], TEXTS[1]]
    assert np.abs(vectors(client.embeddings.create(model="tiny", input=mixed)) - expected).max() < _NEAR


def test_fewer_dimensions_are_the_first_ones_at_length_one(client: openai.OpenAI, plain: Plain) -> None:
    found = vectors(client.embeddings.create(model="tiny", input=TEXTS[0], dimensions=5))[0]
    expected = plain.vector(TEXTS[0])[:5]
    assert np.abs(found - expected / np.linalg.norm(expected)).max() < _NEAR


def test_too_long_texts_are_cut_only_where_that_is_asked_for(client: openai.OpenAI, plain: Plain) -> None:
    text = " ".join(["dog"] * 20)
    ids = plain.tokenizer.encode(text).ids
    with pytest.raises(
        openai.BadRequestError, match=rf"input\[1\]: expected at most {LONGEST} tokens, found 22"
    ):
        client.embeddings.create(model="tiny", input=["hello", text])
    answer = client.embeddings.create(model="tiny", input=text, extra_body={"truncate_prompt_tokens": -1})
    expected = plain.vector([*ids[: LONGEST - 1], ids[-1]])
    assert np.abs(vectors(answer)[0] - expected).max() < _NEAR and answer.usage.total_tokens == LONGEST
    answer = client.embeddings.create(model="tiny", input=[ids], extra_body={"truncate_prompt_tokens": 4})
    assert np.abs(vectors(answer)[0] - plain.vector(ids[:4])).max() < _NEAR


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"input": ""}, "input: expected a text that is not empty"),
        ({"input": ["a", ""]}, "input[1]: expected a text that is not empty"),
        ({"input": []}, "input: expected a text, token ids"),
        ({"input": None}, "input: expected a text, token ids"),
        ({"input": [1.5]}, "input: expected a text, token ids"),
        ({"input": [[]]}, "input: expected a text, token ids"),
        ({"input": [-1]}, "there is no token -1"),
        ({"input": [10**12]}, "there is no token 1000"),
        ({"input": [10**30]}, "input: expected a text, token ids"),
        ({"input": ["a"] * 2049}, "input: expected at most 2048 of them, found 2049"),
        ({"encoding_format": "int8"}, "encoding_format: expected float or base64"),
        ({"encoding_format": 3}, "encoding_format: expected a text"),
        ({"dimensions": 0}, "dimensions: expected a whole number from 1 up"),
        ({"dimensions": WIDTH + 1}, f"dimensions: expected at most {WIDTH}"),
        ({"dimensions": True}, "dimensions: expected a whole number"),
        ({"truncate_prompt_tokens": LONGEST + 1}, f"truncate_prompt_tokens: expected -1, or 1 to {LONGEST}"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"priority": -1}, "priority: expected 0"),
        ({"user": []}, "user: expected a text"),
        ({"dimension": 3}, "dimension: there is no such field here"),
        ({"model": None}, "model: expected a text"),
    ],
)
def test_wrong_requests(served: Running, asked: dict[str, Any], said: str) -> None:
    sent = {"model": "tiny", "input": "hello", **asked}
    answer = httpx.post(f"{served.url}/v1/embeddings", json=sent, timeout=60)
    assert answer.status_code == 400 and said in answer.json()["error"]["message"], answer.text


def test_it_is_a_model_of_both_protocols(served: Running, client: openai.OpenAI) -> None:
    assert [one.id for one in client.models.list()] == ["tiny"]
    with pytest.raises(openai.BadRequestError, match="generates no texts"):
        client.completions.create(model="tiny", prompt="a")
    found = httpx.get(f"{served.url}/v2/models/tiny").json()
    assert [item["name"] for item in found["inputs"]] == ["input_ids", "token_type_ids", "attention_mask"]


def test_models_without_a_tokenizer_have_none(server: Running) -> None:
    answer = httpx.post(f"{server.url}/v1/embeddings", json={"model": "rows", "input": "a"}, timeout=60)
    assert answer.status_code == 400 and "has no embeddings" in answer.text
    answer = httpx.post(f"{server.url}/v1/embeddings", json={"model": "no", "input": "a"}, timeout=60)
    assert answer.status_code == 404


KINDS: dict[str, tuple[dict[str, Any], bool, bool]] = {
    "without a mask": ({"masked": False}, True, False),
    "a mask that is not heeded": ({"heeds": False}, True, False),
    "rows that depend on each other": ({"quantised": True}, False, False),
    "ids of 32 bits": ({"dtype": 6}, True, True),
    "vectors of texts": ({"whole": True, "output": "sentence_embedding"}, True, False),
    "an output of another name": ({"output": "x7"}, True, True),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_would_change_vectors_is_not_joined(tmp_path: Path, kind: str) -> None:
    how, joins, pads = KINDS[kind]
    folder = save_folder(tmp_path / "tiny", **how)
    plain = Plain(folder)
    metrics = Metrics()
    model = model_of(folder, metrics)
    with running(model, metrics=metrics) as found:
        answer = httpx.post(
            f"{found.url}/v1/embeddings", json={"model": "tiny", "input": [*TEXTS, TEXTS[0]]}, timeout=60
        )
        assert answer.status_code == 200, answer.text
        assert model.encoder is not None and (model.encoder.joins, model.encoder.pads) == (joins, pads)
    shown = np.array([one["embedding"] for one in answer.json()["data"]])
    if how.get("whole"):
        expected = [plain.tokens(text) for text in [*TEXTS, TEXTS[0]]]
        expected = [one / np.linalg.norm(one) for one in expected]
    else:
        expected = [plain.vector(text) for text in [*TEXTS, TEXTS[0]]]
    assert np.abs(shown - np.array(expected)).max() < _NEAR


def test_texts_of_a_fixed_length(tmp_path: Path) -> None:
    folder = save_folder(tmp_path / "tiny", length=8)
    metrics = Metrics()
    with running(model_of(folder, metrics), metrics=metrics) as found:
        url = f"{found.url}/v1/embeddings"
        answer = httpx.post(url, json={"model": "tiny", "input": TEXTS[:3]}, timeout=60)
        long = httpx.post(url, json={"model": "tiny", "input": "dog " * 9}, timeout=60)
    open_ended = save_folder(tmp_path / "open")
    expected = [Plain(open_ended).vector(text) for text in TEXTS[:3]]
    assert np.abs(np.array([one["embedding"] for one in answer.json()["data"]]) - expected).max() < _NEAR
    assert long.status_code == 400 and "at most 8 tokens" in long.text


@pytest.mark.parametrize("mode", POOLINGS)
def test_poolings_are_as_defined(mode: str) -> None:
    random = np.random.default_rng(5)
    tokens = random.standard_normal((3, 6, 4)).astype(np.float32)
    lengths = [6, 1, 4]
    found = pooled(tokens, lengths, [mode])
    for row, length in enumerate(lengths):
        own = tokens[row, :length].astype(np.float64)
        weights = np.arange(1, length + 1)[:, None]
        expected = {
            "cls": own[0], "max": own.max(0), "mean": own.mean(0),
            "mean_sqrt_len": own.sum(0) / np.sqrt(length),
            "weightedmean": (own * weights).sum(0) / weights.sum(), "lasttoken": own[-1],
        }[mode]  # fmt: skip
        assert found[row] == pytest.approx(expected, abs=1e-6)


def settings(folder: Path, **files: object) -> Path:
    for name, content in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(exist_ok=True)
        path.with_suffix(".json").write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


@pytest.mark.parametrize("form", ["flags", "one", "several"])
def test_poolings_are_read_as_the_folder_says(tmp_path: Path, form: str) -> None:
    folder = save_folder(tmp_path / "tiny", ("cls_token", "max_tokens"))
    said: Any = {"one": {"pooling_mode": "cls"}, "several": {"pooling_mode": ["max", "cls"]}}.get(form)
    if said is not None:
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(said))
    found = find_encoder(Job(model=folder), None)
    assert found is not None
    assert list(found.encoder.folder.modes) == (["cls"] if form == "one" else ["cls", "max"])


@pytest.mark.parametrize("activation", ["Tanh", "ReLU", "Identity", "Sigmoid", "SiLU"])
@pytest.mark.parametrize("kind", ["model.safetensors", "pytorch_model.bin"])
def test_layers_after_the_pooling_are_those_of_torch(tmp_path: Path, activation: str, kind: str) -> None:
    torch = pytest.importorskip("torch", reason="torch computes the layer that is expected")
    safetensors = pytest.importorskip("safetensors.numpy", reason="it writes the layer's weights")
    layer = torch.nn.Linear(WIDTH, 7, bias=kind.startswith("model"))
    folder = save_folder(tmp_path / "tiny")
    (folder / "2_Dense").mkdir()
    said = {
        "in_features": WIDTH,
        "out_features": 7,
        "activation_function": f"torch.nn.modules.x.{activation}",
    }
    (folder / "2_Dense" / "config.json").write_text(json.dumps(said))
    weights = {f"linear.{name}": value.detach() for name, value in layer.named_parameters()}
    if kind.startswith("model"):
        safetensors.save_file({name: one.numpy() for name, one in weights.items()}, folder / "2_Dense" / kind)
    else:
        torch.save(weights, folder / "2_Dense" / kind)
    modules = [
        {"type": f"sentence_transformers.models.{name}", "path": path}
        for name, path in {
            "Transformer": "",
            "Pooling": "1_Pooling",
            "Dense": "2_Dense",
            "Normalize": "3",
        }.items()
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    found, plain = find_encoder(Job(model=folder), None), Plain(folder)
    assert found is not None
    batch = next(iter(found.encoder.batches([found.encoder.ids(TEXTS[1])])))
    tokens = plain.tokens(TEXTS[1])
    with torch.no_grad():
        expected = getattr(torch.nn, activation)()(layer(torch.tensor(tokens.mean(0, keepdims=True))))
        expected = torch.nn.functional.normalize(expected, dim=1)[0].numpy()
    assert found.encoder.vectors(batch, {"last_hidden_state": tokens[None]})[0] == pytest.approx(
        expected, abs=1e-5
    )


def test_what_only_a_tokenizer_says(tmp_path: Path) -> None:
    """A file with a tokenizer beside it, or one folder up: the mean of all tokens, not made length 1."""
    folder = save_folder(tmp_path / "tiny")
    for path in (folder / "modules.json", folder / "1_Pooling" / "config.json"):
        path.unlink()
    (folder / "onnx").mkdir()
    (folder / "model.onnx").rename(folder / "onnx" / "model.onnx")
    for model in (folder, folder / "onnx", folder / "onnx" / "model.onnx"):
        found = find_encoder(Job(model=model), None)
        assert found is not None and found.job.model == folder / "onnx" / "model.onnx"
        assert found.encoder.folder.modes == ["mean"] and not found.encoder.steps
    assert find_encoder(Job(model=save_encoder(tmp_path / "alone.onnx")), None) is None
    named = find_encoder(Job(model=tmp_path / "alone.onnx"), folder)
    assert named is not None and named.encoder.folder.path == folder


@pytest.mark.parametrize("shape", [(1, -1, 8), (-1, -1, 0), (-1, 1, 8), (-1, 8), (-1, -1, 1, 8)])
def test_outputs_that_have_no_vector_for_each(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """A graph may give something else than it declares, for a batch or always."""
    found = find_encoder(Job(model=save_folder(tmp_path / "tiny")), None)
    assert found is not None

    def compute(feeds: Any) -> Any:
        lengths = feeds["input_ids"].shape
        sizes = [size or 8 * lengths[0] if size >= 0 else lengths[axis] for axis, size in enumerate(shape)]
        return {"last_hidden_state": np.ones(sizes, np.float32)}

    encoder = found.encoder.proved(compute)
    assert not encoder.joins and not encoder.pads
    [batch] = encoder.batches([[4, 5]])
    if shape in {(1, -1, 8), (-1, -1, 0)}:
        assert encoder.vectors(batch, compute(batch.feeds)).shape == (1, 8)
        return
    with pytest.raises(ConfigError, match=r"has the shape .* a vector for each of 1 text of 2 tokens"):
        encoder.vectors(batch, compute(batch.feeds))


def test_a_tokenizer_that_knows_few_words(tmp_path: Path) -> None:
    """What would show how texts may be joined is none to it: then each is computed alone."""
    folder = save_folder(tmp_path / "tiny")
    said = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = said["model"]["vocab"]
    del vocabulary[said["model"]["unk_token"]], vocabulary["lazy"]
    (folder / "tokenizer.json").write_text(json.dumps(said))
    found = find_encoder(Job(model=folder), None)
    assert found is not None
    asked: list[Any] = []
    encoder = found.encoder.proved(lambda feeds: asked.append(feeds) or {})
    assert not asked and not encoder.joins and not encoder.pads
    assert encoder.ids("the fox") and len(list(encoder.batches([[4], [4]]))) == 2
    with pytest.raises(ConfigError, match="makes no tokens of the text"):
        encoder.ids("lazy")


def test_a_prompt_that_texts_begin_with(tmp_path: Path) -> None:
    said = {"prompts": {"query": "the fox ", "none": ""}, "default_prompt_name": "query"}
    folder = settings(save_folder(tmp_path / "tiny"), config_sentence_transformers=said)
    found = find_encoder(Job(model=folder), None)
    assert found is not None
    assert found.encoder.ids(" dog ") == Plain(folder).tokenizer.encode("the fox dog").ids


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"modules": "{"}, "modules.json"),
        (
            {"modules": [{"type": "x.Transformer", "path": "../.."}]},
            "expected modules with a type and a folder",
        ),
        ({"modules": [3]}, "expected a mapping"),
        ({"modules": [{"type": "x.models.WKPooling", "path": ""}]}, "a module 'WKPooling'"),
        (
            {"modules": [{"type": "x.Normalize", "path": ""}, {"type": "x.Pooling", "path": "1_Pooling"}]},
            "a module 'Normalize before Pooling'",
        ),
        ({"modules": [{"type": "x.models.Dense", "path": "2_Dense"}]}, "2_Dense does not exist"),
        (
            {
                "modules": [{"type": "x.models.Dense", "path": "2_Dense"}],
                "2_Dense__config": {"module_input_name": "token_embeddings"},
            },
            "module_input_name: expected 'sentence_embedding'",
        ),
        (
            {
                "modules": [{"type": "x.models.Dense", "path": "2_Dense"}],
                "2_Dense__config": {"activation_function": "torch.nn.Softplus"},
            },
            "activation_function: expected one of Identity, Tanh",
        ),
        ({"1_Pooling__config": {"pooling_mode": "median"}}, "pooling_mode: expected some of cls, max"),
        ({"1_Pooling__config": {"pooling_mode": [["mean"]]}}, "pooling_mode: expected some of cls, max"),
        ({"1_Pooling__config": {"pooling_mode_cls_token": False}}, "expected a pooling"),
        ({"modules": [{"type": "x.Pooling", "path": "a" * 999}]}, "cannot be read: File name too long"),
        ({"sentence_bert_config": {"max_seq_length": 0}}, "max_seq_length: expected a whole number above 0"),
        (
            {"config_sentence_transformers": {"default_prompt_name": "x"}},
            "default_prompt_name: expected one of",
        ),
        (
            {"config_sentence_transformers": {"default_prompt_name": ["x"], "prompts": {"x": ""}}},
            "default_prompt_name: expected one of",
        ),
    ],
)
def test_folders_that_cannot_be_followed(tmp_path: Path, files: dict[str, Any], said: str) -> None:
    folder = settings(save_folder(tmp_path / "tiny"), **files)
    with pytest.raises(ConfigError, match=re.escape(said)):
        find_encoder(Job(model=folder), None)
    # As a file among others it is a model of tensors, which nobody has asked embeddings of.
    assert find_encoder(Job(model=folder / "model.onnx"), None) is None


def test_another_version_has_embeddings_too() -> None:
    """Else clients of the one would be refused by the other."""

    class Known:
        """An encoder that needs no proof."""

        def proved(self, compute: object) -> Known:
            return self

    limits, metrics = ServeLimits(), Metrics()

    def made(version: str) -> TensorModel:
        encoder: Any = None if version == "3" else Known()
        return TensorModel("m", limits, metrics, version=version, open_group=Played, encoder=encoder)

    async def replace() -> str:
        repository = Repository({"m": made("1")}, versions={"m": made})
        try:
            await repository.load_all()
            await repository.replace("m", "2", check_alike)
            with pytest.raises(RefusalError, match="no tokenizer beside it"):
                await repository.replace("m", "3", check_alike)
            return repository.get("m").version
        finally:
            await repository.close()

    assert asyncio.run(replace()) == "2"

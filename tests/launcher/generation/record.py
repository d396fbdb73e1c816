"""Writes recorded.json: what transformers generates with the table of `tests.launcher.generation.table`.

`python -m tests.launcher.generation.record` with torch and transformers installed.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

from tests.launcher.generation.table import VOCABULARY, tables

FILE = Path(__file__).with_name("recorded.json")
PROMPT = [3, 17, 5, 30, 5, 9]
ENDS = [7, 21]
CHAT = (
    "{{ bos_token }}{% for message in messages %}\n  {% if message['role'] == 'system' %}\n"
    "    {{- '<<' + message.content + '>>' }}\n  {% else %}\n    {{- message.role + ': ' }}"
    "{% generation %}{{ message.content | trim }}{% endgeneration %}{{ eos_token }}\n  {% endif %}\n"
    "  {% if loop.index > 5 %}{% break %}{% endif %}{% endfor %}\n"
    "{{ messages[0] | tojson }}{{ tools | tojson if tools else 'no tools' }}\n"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
MESSAGES = [
    {"role": "system", "content": "be brief <b> é"},
    {"role": "user", "content": "  hello \n"},
    {"role": "assistant", "content": "hi"},
    {"role": "user", "content": "bye"},
]


def cases() -> list[dict[str, Any]]:
    """Options of both, by transformers' names."""
    greedy = [
        {},
        {"repetition_penalty": 1.4},
        {"no_repeat_ngram_size": 2},
        {"min_new_tokens": 9},
        {"repetition_penalty": 0.7, "no_repeat_ngram_size": 3, "min_new_tokens": 4},
    ]
    beams = [
        {"num_beams": beams, "num_return_sequences": returned, "length_penalty": penalty, **more}
        for beams, returned in ((2, 1), (4, 4), (9, 3))
        for penalty in (1.0, 0.0, 2.0, -1.0)
        for more in ({}, {"early_stopping": True}, {"early_stopping": "never"})
    ]
    mixed = [
        {"num_beams": 4, "num_return_sequences": 2, **more}
        for more in ({"repetition_penalty": 1.3}, {"no_repeat_ngram_size": 2}, {"min_new_tokens": 8})
    ]
    return [
        {"max_new_tokens": 14, "eos_token_id": ends, **options}
        for options, ends in itertools.product(greedy + beams + mixed, (ENDS, ENDS[:1], list(range(7, 20))))
    ]


def sampling() -> list[dict[str, Any]]:
    """Options of random choices."""
    return [
        {"temperature": temperature, **more}
        for temperature in (0.5, 1.0, 3.0)
        for more in (
            {}, {"top_k": 5}, {"top_p": 0.8}, {"min_p": 0.1}, {"top_k": 12, "top_p": 0.6},
            {"top_k": 20, "top_p": 0.95, "min_p": 0.02},
        )
    ]  # fmt: skip


def main() -> None:
    """Records."""
    import torch
    import transformers
    from transformers.generation.logits_process import LogitsProcessorList
    from transformers.modeling_outputs import CausalLMOutput

    class Config(transformers.PretrainedConfig):  # type: ignore[misc]
        model_type = "table"
        num_hidden_layers = 1

    class Table(transformers.PreTrainedModel, transformers.GenerationMixin):  # type: ignore[misc]
        config_class = Config
        main_input_name = "input_ids"

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.anchor = torch.nn.Parameter(torch.zeros(1))
            self.last, self.before = map(torch.tensor, tables())
            self.post_init()

        def prepare_inputs_for_generation(self, input_ids: Any, attention_mask: Any = None, **_: Any) -> Any:
            return {"input_ids": input_ids}

        def forward(self, input_ids: Any, attention_mask: Any = None, **_: Any) -> Any:
            shifted = torch.nn.functional.pad(input_ids, (1, 0))[:, :-1]
            return CausalLMOutput(logits=self.last[input_ids] + self.before[shifted])

    model = Table(Config(vocab_size=VOCABULARY)).eval()
    recorded: dict[str, Any] = {"texts": [], "spreads": []}
    start = torch.tensor([PROMPT])
    for options in cases():
        found = model.generate(
            start, do_sample=False, use_cache=False, pad_token_id=0, output_scores=True,
            return_dict_in_generate=True, attention_mask=torch.ones_like(start), **options,
        )  # fmt: skip
        ids = []
        for row in found.sequences[:, len(PROMPT) :].tolist():
            ends = [place for place, token in enumerate(row) if token in options["eos_token_id"]]
            ids.append(row[: ends[0] + 1] if ends else row)
        scores = getattr(found, "sequences_scores", None)
        recorded["texts"].append(
            {"options": options, "ids": ids, "scores": None if scores is None else scores.tolist()}
        )
    row = model(start).logits[:, -1]
    for options in sampling():
        config = transformers.GenerationConfig(do_sample=True, **{"top_k": 0, **options})
        processors = model._get_logits_processor(
            config, input_ids_seq_length=6, logits_processor=LogitsProcessorList()
        )
        spread = processors(start, row.clone()).softmax(-1)[0]
        recorded["spreads"].append({"options": options, "probabilities": spread.tolist()})
    from tokenizers import Tokenizer, models

    plain = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, unk_token="a")),
        bos_token="<s>",
        eos_token="</s>",
    )
    recorded["chat"] = [
        plain.apply_chat_template(
            MESSAGES, chat_template=CHAT, tokenize=False, add_generation_prompt=continued
        )
        for continued in (True, False)
    ]
    FILE.write_text(json.dumps(recorded) + "\n")


if __name__ == "__main__":
    main()

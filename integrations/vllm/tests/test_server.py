"""Both servers, as `make serve` starts them, through the protocol of OpenAI."""

from __future__ import annotations

import concurrent.futures
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import agreement
import httpx
from transformers import AutoTokenizer

ROOT = Path(__file__).resolve().parents[3]
SIZES = {"spyre": {"batches": [1, 8], "chunks": [64], "pages": [4]}}
VLLM = ["--max-model-len", "256", "--additional-config", json.dumps(SIZES),
        "--served-model-name", "card"]  # fmt: skip


@contextmanager
def server(way: str, folder: Path, log: Path, *options: str) -> Iterator[httpx.Client]:
    """A running server; stopped as Ctrl-C does it, and it has to go."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "VLLM": str(Path(sys.executable).parents[1])}
    environment.pop("VLLM_ENABLE_V1_MULTIPROCESSING", None)
    command = ["sh", str(ROOT / "integrations/serve.sh"), way, str(folder), "127.0.0.1", str(port)]
    with log.open("w") as out:
        process = subprocess.Popen(
            [*command, *options], env=environment, stdout=out, stderr=out, cwd=ROOT
        )
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=600)
    try:
        while True:
            assert process.poll() is None, log.read_text()[-4000:]
            try:
                if client.get("/health").status_code == 200:
                    break
            except httpx.TransportError:
                time.sleep(0.5)
        yield client
        # Until it is stopped: vLLM kills its engine then, and may say that it has died.
        assert "Traceback" not in log.read_text(), log.read_text()[-4000:]
    finally:
        client.close()
        process.send_signal(signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            raise


def complete(client: httpx.Client, prompt: list[int], tokens: int) -> list[int]:
    """Greedy tokens of one request."""
    answer = client.post("/v1/completions", json={
        "model": "card", "prompt": prompt, "max_tokens": tokens, "temperature": 0,
        "ignore_eos": True, "return_token_ids": True,
    })  # fmt: skip
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    return choice["token_ids"]


def events(answer: httpx.Response) -> Iterator[dict]:
    """What a stream tells."""
    for line in answer.iter_lines():
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line[6:])


def ids(folder: Path, text: str) -> list[int]:
    return AutoTokenizer.from_pretrained(folder)(text).input_ids


def test_vllm_serves_completions_chat_streams_and_many_at_once(llama, tmp_path: Path):
    folder, cpu = llama
    log = tmp_path / "server.log"
    with server("vllm", folder, log, *VLLM) as client:
        prompt = ids(folder, "The card has 32 cores")
        tokens = complete(client, prompt, 16)
        agreement.check(cpu, prompt, tokens)

        # A conversation, at once and as a stream.
        talk = {"model": "card", "max_tokens": 12, "temperature": 0, "ignore_eos": True,
                "messages": [{"role": "user", "content": "How many?"}]}  # fmt: skip
        answer = client.post("/v1/chat/completions", json=talk)
        assert answer.status_code == 200, answer.text
        text = answer.json()["choices"][0]["message"]["content"]
        assert answer.json()["usage"]["completion_tokens"] == 12
        with client.stream("POST", "/v1/chat/completions", json={**talk, "stream": True}) as stream:
            pieces = [e["choices"][0]["delta"].get("content") or "" for e in events(stream)]
        assert len(pieces) > 3
        assert "".join(pieces) == text

        # Eight at once.
        prompts = [ids(folder, f"Request {i} of eight, " * i) for i in range(1, 9)]
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda p: complete(client, p, 24), prompts))
        for one, got in zip(prompts, found, strict=True):
            agreement.check(cpu, one, got)

        # Longer than the context: an error that says so, and the server goes on.
        answer = client.post("/v1/completions", json={"model": "card", "prompt": [9] * 300})
        assert answer.status_code == 400
        assert "256" in answer.text
        assert "300" in answer.text

        # A client that goes away in the middle: its request is dropped.
        long = {"model": "card", "prompt": prompt, "max_tokens": 200, "stream": True,
                "ignore_eos": True}  # fmt: skip
        with client.stream("POST", "/v1/completions", json=long) as stream:
            next(events(stream))
        until = time.monotonic() + 30
        while "vllm:num_requests_running{" not in (metrics := client.get("/metrics").text) or any(
            line.startswith("vllm:num_requests_running{") and not line.endswith(" 0.0")
            for line in metrics.splitlines()
        ):
            assert time.monotonic() < until, "the request goes on without its client"
            time.sleep(0.1)
        assert complete(client, prompt, 16) == tokens

    with server("vllm", folder, log, *VLLM) as client:
        assert complete(client, prompt, 16) == tokens, "after a restart"


def test_transformers_serves_a_conversation(llama, tmp_path: Path):
    folder, cpu = llama
    tokenizer = AutoTokenizer.from_pretrained(folder)
    messages = [{"role": "user", "content": "How many cores?"}]
    log = tmp_path / "server.log"
    with server("transformers", folder, log) as client:
        answer = client.post("/v1/chat/completions", json={
            "model": str(folder), "messages": messages, "max_tokens": 6, "stream": False,
            "temperature": 0,
        })  # fmt: skip
        assert answer.status_code == 200, answer.text
        text = answer.json()["choices"][0]["message"]["content"]
    prompt = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt"
    )
    prompt = prompt["input_ids"] if not hasattr(prompt, "shape") else prompt
    expected = cpu.generate(prompt, max_new_tokens=6, do_sample=False)
    assert text == tokenizer.decode(expected[0, prompt.shape[1] :], skip_special_tokens=True)
    assert "int64 tensors are stored as int32 on the card" in log.read_text(), "it ran elsewhere"

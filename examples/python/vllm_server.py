"""A model in vLLM's server on ropekit's kernels, and one question from OpenAI's client.

python examples/python/vllm_server.py MODEL QUESTION [OPTION...] starts the server on 127.0.0.1 with
vLLM's options, prints the answer and ends it.
"""

import os
import socket
import subprocess
import sys
import time

import openai


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_for(client: openai.OpenAI, server: subprocess.Popen, seconds: int = 600) -> str:
    """The name of the model, once the server tells it."""
    end = time.monotonic() + seconds
    while server.poll() is None and time.monotonic() < end:
        try:
            return client.models.list().data[0].id
        except openai.APIConnectionError:
            time.sleep(1)
    raise SystemExit("the server did not start")


def main(model: str, question: str, *options: str) -> None:
    port = free_port()
    place = ["--model", model, "--host", "127.0.0.1", "--port", str(port)]
    server = subprocess.Popen(
        [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *place, *options],
        env=os.environ | {"ROPE_VLLM": "attention,rotation"},
    )
    try:
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none")
        name = wait_for(client, server)
        answer = client.completions.create(
            model=name, prompt=question, max_tokens=16, temperature=0
        )
    finally:
        server.terminate()
        server.wait()
    print(question, answer.choices[0].text)  # behind the server's last line of log


if __name__ == "__main__":
    main(*sys.argv[1:])

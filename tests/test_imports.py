"""What importing the engine costs a process that does not use all of it."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
CODE = """
import sys
import agent
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


def test_importing_agent_loads_no_client_no_database_and_no_page() -> None:
    command = [sys.executable, "-c", CODE]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", check=True)
    loaded = set(done.stdout.split())
    assert loaded >= {"agent", "tools"}
    assert loaded & {"openai", "sqlalchemy", "requests", "streamlit", "httpx2"} == set()

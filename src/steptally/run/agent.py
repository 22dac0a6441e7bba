"""torchrun, with its failures as data: `python -m steptally.run.agent REPORT TORCHRUN-ARGUMENTS`.

Runs `torch.distributed.run` as it is. Where ranks fail, torchrun prints a table whose root cause
it guesses from times in whole seconds; this writes what it knows of every rank to the file REPORT,
for `run.failure` to judge.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

from steptally.run.processes import die_with_parent
from steptally.trace.run_directory import write_atomically


def main() -> None:
    """Run torchrun; exit with status 1 where a rank failed."""
    die_with_parent(signal.SIGTERM)  # torchrun then ends its workers
    report, *arguments = sys.argv[1:]

    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    try:
        run.run(run.parse_args(arguments))
    except ChildFailedError as error:
        rows = [
            {
                "rank": rank,
                "pid": failure.pid,
                "exit_code": failure.exitcode,
                "noticed_unix_s": failure.timestamp,
            }
            for rank, failure in error.failures.items()
        ]
        write_atomically(Path(report), json.dumps(rows))
        sys.exit(1)


if __name__ == "__main__":
    main()

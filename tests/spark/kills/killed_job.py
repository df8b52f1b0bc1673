"""A job on Spark whose driver ends itself at its Nth step, as in `killed_commands`. A program of the tests.

python -m tests.spark.kills.killed_job STEP NAME ARGUMENT...
"""

import os
import sys

from nyala.client.calls.connecting import ENVIRONMENT
from nyala.spark.jobs.commands import main
from nyala.spark.session import spark_session
from tests.spark.kills.killed_commands import end_at

if __name__ == "__main__":
    end_at(int(sys.argv[1]))
    sys.exit(
        main(sys.argv[2:], "job", os.environ[ENVIRONMENT], lambda: spark_session("killed job", 1))
    )

"""``python -m atroposlib.cli.dataset_env_debugger``: the workbench of data sets, under its documented path."""

import sys

from environments.dataset_environment.workbench.program import main

if __name__ == "__main__":
    sys.exit(main())

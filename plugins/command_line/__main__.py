"""``python -m clgraft.plugins.command_line``."""

import sys

from clgraft.plugins.command_line.main import main

sys.exit(main())

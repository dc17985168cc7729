"""What tests of picked rows share."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

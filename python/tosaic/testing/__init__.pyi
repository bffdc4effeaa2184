# isort: skip_file
"""The public names of tosaic.testing, in the order of the API page, each with the module that has it."""

from tosaic.testing.matching import MismatchError as MismatchError
from tosaic.testing.matching import assert_lowers as assert_lowers
from tosaic.testing.matching import assert_matches as assert_matches

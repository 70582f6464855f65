# SPDX-License-Identifier: Apache-2.0
import pytest
import tilewire


@pytest.fixture
def comm():
    """A communicator of one rank."""
    made = tilewire.Communicator(None, 0, 1)
    yield made
    made.close()

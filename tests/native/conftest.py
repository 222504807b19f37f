"""The tests of native threads stand in mixins, whose assertions pytest must be told to explain."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tests.native.mixins", "tests.native.calls")

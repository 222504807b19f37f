"""The contract tests stand in mixins, whose assertions pytest must be told to explain."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tests.contract.mixins", "tests.contract.calls")

"""What a run says that it will need."""

from __future__ import annotations

from tests.helpers.unequal import task_of
from wima import WIMA, Scaffold
from wima.runs.plan import Plan, make_plan
from wima.runs.settings import make_settings


def plan_of(**settings) -> Plan:
    made = make_settings({"clients_per_round": 4, **settings})
    return make_plan(made, task_of(), Scaffold(), [WIMA(10)])


def test_bfloat16_halves_past_models_and_leaves_what_clients_remember():
    whole, half = (plan_of(store_dtype=dtype) for dtype in ("float32", "bfloat16"))
    assert half.window * 2 == whole.window > 0
    assert half.clients == whole.clients > 0

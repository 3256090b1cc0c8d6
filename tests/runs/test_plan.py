"""What a run says that it will need."""

from __future__ import annotations

from tests.helpers.unequal import SIZES, task_of
from wima import WIMA, Scaffold
from wima.engine.memory import OVERHEAD
from wima.runs.plan import Plan, make_plan
from wima.runs.settings import make_settings


def plan_of(**settings) -> Plan:
    made = make_settings({"clients_per_round": 4, **settings})
    return make_plan(made, task_of(), Scaffold(), [WIMA(10)])


def test_bfloat16_halves_past_models_and_leaves_what_clients_remember():
    whole, half = (plan_of(store_dtype=dtype) for dtype in ("float32", "bfloat16"))
    assert half.window * 2 == whole.window > 0
    assert half.clients == whole.clients > 0


def test_clients_need_memory_beyond_what_is_kept_in_memory_of_their_states():
    few, many = (plan_of(client_memory_gb=0, rounds=rounds) for rounds in (1, 2))
    assert many.memory - few.memory == OVERHEAD * (len(SIZES) - 4)  # visited in the second round

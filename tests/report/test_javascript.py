"""The scripts of the report's page, under node with a fake browser: syntax, results, no crash."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wima.report.page import FOLDER, SCRIPTS

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
SOURCE = "\n".join((FOLDER / name).read_text(encoding="utf-8") for name in SCRIPTS)
HARNESS = """
const curve = { first: 1, step: 2, v: [10, 30, null, 20] }, curves = { plain: curve, wima2: curve };
const windows = { plain: { first: 1, step: 1, v: [1, 2, 3, 2, 1, 5, 7] } };
const run = { name: "run-0", state: "done", done: 7, rounds: 7, seconds: 75, own: {}, curves,
  windows };
const entry = { mean: 61.25, deviation: 0.5, text: "", seeds: 1, basis: "1 seed", jitter: 1.5,
  jump: 2, forgetting: 0.5, reached: [7], members: [[0, 0, "plain"], [1, -1, "plain"]] };
const band = { ...curve, low: [5, 20, null, 10], high: [15, 40, null, 30], sparse: 5, seeds: [0] };
const paper = { paper: 60, where: "Table 2", remark: "printed twice" };
const more = { ...paper, gain: [2, 1, "rounds", 4, true] };
const entries = [{ ...entry, band, at: [0, 0, 0] }, { ...entry, ...more, at: [0, 0, 1] }];
const table = (columns) => ({ last: 4, rows: ["r"], columns, headings: ["plain", "ema"], entries,
  gainNotes: ["Gain: over plain."], settings: ["lr = 1."], long: { r: "all of r" }, seeds: "" });
const panels = [["r", { plain: [[10, 0], [30, 50], [80, 100]], ema: [[20, 0], [90, 100]] }]];
const below = (diagonal) => ({ title: "Clients", grid: [2, ["", "", "mean"], [["r", "plain", "42"],
  ["r", "ema", "43"]]], notes: ["Of round 7."], picture: ["acc", "share", diagonal, panels, 2] });
const data = { measure: { title: "loss", digits: 2, sign: -1, target: 60 }, facts: {}, files: {},
  tables: [{ ...table(["a"]), sections: [below(false), below(true)] }, table(["a", "b"])],
  runs: [run], machines: [{}], omitted: [["a", "b"]] };
const anything = () => new Proxy(() => anything(), { get: anything }); // any property, any call
const loose = { style: anything(), classList: anything(), clientWidth: 400, clientHeight: 300 };
const listeners = [], addEventListener = (...args) => listeners.push(args);
class Element {
  constructor(tag) { Object.assign(this, loose, { tag, children: [], value: "", dataset: {} }); }
  setAttribute(name, to) { this[name] = to; } addEventListener(...args) { listeners.push(args); }
  append(...added) { this.children.push(...added); } replaceChildren(...c) { this.children = c; }
  querySelectorAll(tag) { return this.children.flatMap((child) => child instanceof Element
    ? [...(child.tag === tag ? [child] : []), ...child.querySelectorAll(tag)] : []); }
  querySelector(tag) { return this.querySelectorAll(tag)[0]; }
  set textContent(text) { this.children = [text]; }
  get textContent() { return this.children.map((child) => child.textContent ?? child).join(""); }
  getContext() { return anything(); } getBoundingClientRect() { return { left: 0, top: 0 }; }
  remove() {} close() {} showModal() {} observe() {} unobserve() {}
}
const make = (tag) => new Element(tag), named = { data: { textContent: JSON.stringify(data) } };
const document = { getElementById: (id) => (named[id] ??= make(id)), createElement: make,
  body: make("body"), createElementNS: (_, tag) => make(tag), documentElement: make("html") };
const fire = (name, key = "") => [...listeners].forEach(([on, listener]) => on === name
  && listener({ key, target: make("input"), preventDefault() {}, clientX: 99, clientY: 99 }));
const input = JSON.parse(require("fs").readFileSync(0, "utf8")), vm = require("vm");
const page = vm.createContext({ ...input.names, document, fire, named, window: {}, addEventListener,
  getSelection: anything, getComputedStyle: anything, matchMedia: anything, navigator: anything(),
  ResizeObserver: Element, IntersectionObserver: Element, requestAnimationFrame: (f) => f() });
vm.runInContext(input.script, page);
console.log(JSON.stringify(vm.runInContext(input.code, page)));
"""
EVERYTHING = """["beforeprint", "pointermove"].forEach((name) => fire(name));
["ArrowLeft", "ArrowUp", "End", "Escape", "h", "Home", "h"].forEach((key) => fire("keydown", key));
["input", "change", "pointerleave", "click", "click", "afterprint"].forEach((name) => fire(name));
named.main.textContent"""


def node(*arguments: str, given: str = "") -> str:
    command, options = ["node", *arguments], {"capture_output": True, "encoding": "utf-8"}
    done = subprocess.run(command, input=given, timeout=60, check=False, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def js(code: str, script: str = SOURCE, **names: Any) -> Any:
    """The value of an expression after the page's script ran; `names` are its variables."""
    sent = json.dumps({"script": script, "code": code, "names": names})
    return json.loads(node("-e", HARNESS, given=sent))


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.js")), ids=lambda path: path.name)
def test_a_script_has_no_syntax_error_and_is_part_of_the_page(path: Path) -> None:
    assert node("--check", str(path)) == "" and path.name in SCRIPTS


def test_the_page_is_built_and_every_control_works() -> None:
    shown = js(EVERYTHING)
    assert "61.25 ± 0.50" in shown
    assert "[+1.00, +3.00]*†" in shown
    assert "lr = 1." in shown
    assert "Clients" in shown and "Of round 7." in shown and "2 more panels" in shown


def test_an_undeclared_variable_in_a_panel_is_found() -> None:
    with pytest.raises(AssertionError, match="ReferenceError: places is not defined"):
        js(EVERYTHING, SOURCE.replace("const places = points", "const other = points"))


def test_a_gain_has_the_marks_of_its_interval() -> None:
    assert "± 1.00*†" in js("fire('beforeprint'); named.main.textContent")
    gains = [[2, 1, "seeds", 3, False], [2, 1, "rounds", 30, True], [2, None, "rounds", 4, False]]
    assert js("gains.map(marks)", gains=gains) == ["", "*†", ""]


def test_an_undeclared_variable_in_a_function_is_found() -> None:
    with pytest.raises(AssertionError, match="ReferenceError: rough is not defined"):
        js(EVERYTHING, SOURCE.replace("const rough =", "const other ="))


def test_an_undeclared_variable_in_the_strip_is_found() -> None:
    with pytest.raises(AssertionError, match="ReferenceError: top is not defined"):
        js(EVERYTHING, SOURCE.replace("const top = bottom", "const other = bottom"))


def test_a_curve_is_told_with_the_models_in_its_window_if_they_are_known() -> None:
    line = {"window": {"x": [1, 2, 4], "y": [1, 2, 3]}}
    found = js("[1, 2, 3].map((round) => Strip.prototype.told(line, round))", line=line)
    assert found == [", mean of 1 model", ", mean of 2 models", ""]
    assert js("Strip.prototype.told({}, 1)") == ""


def test_the_strip_has_the_windows_between_the_rounds_that_are_shown() -> None:
    x, y = list(range(1, 9)), [90, 3, 8, 5, 40, 7, 1, 60]
    lines = [{"window": {"x": x, "y": y}}]
    low, high = js("Strip.prototype.range(lines, 2, 6)", lines=lines)
    shown = [count for t, count in zip(x, y, strict=True) if 2 <= t <= 6]
    assert 0.8 < low / min(shown) < 1 < high / max(shown) < 1.25
    assert js("Strip.prototype.range([], 2, 6)")[0] > 0  # of series that are hidden: a log scale


def test_numbers_have_a_true_minus_sign_and_zero_has_none() -> None:
    written = js("[format(-1.234), format(-0.001), format(2, true), short(-0.1 - 0.2)]")
    assert written == ["\N{MINUS SIGN}1.23", "0.00", "+2.00", "\N{MINUS SIGN}0.3"]


def test_ticks_are_round_numbers_on_the_axis() -> None:
    axes = [(0.3, 1, 0), (7, 97, 0), (0.5, 2000, 0), (0.3, 1, 1), (7, 97, 1), (1e-7, 1e3, 1)]
    found = js("axes.map(([low, high, log]) => ticks(low, high, log, 6))", axes=axes)
    for (low, high, log), ticks in zip(axes, found, strict=True):
        assert 2 <= len(ticks) <= 15 and low <= min(ticks) and max(ticks) <= high
        numbers = ticks if log and high / low > 4 else np.diff(ticks)  # short axes are linear
        assert {f"{number:.4e}"[:6] for number in numbers} <= {"1.0000", "2.0000", "5.0000"}


def test_the_nearest_round_is_that_of_a_search_through_all() -> None:
    x, pixels = [1, 2, 3, 10, 50, 51], list(range(170))
    found = js("pixels.map((pixel) => nearest(x, pixel, (t) => 3 * t))", x=x, pixels=pixels)
    assert found == [int(np.abs(3 * np.array(x) - pixel).argmin()) for pixel in pixels]


def test_smoothing_is_the_mean_of_the_last_rounds_and_keeps_gaps() -> None:
    t, v = [1, 2, 4, 8, 9, 10], [100, 300, None, 200, 600, 400]  # hundredths
    seen = [[w for s, w in zip(t, v, strict=True) if now - 3 < s <= now and w] for now in t]
    means = [value and np.mean(last) / 100 for value, last in zip(v, seen, strict=True)]
    assert js("smoothed({ t, v }, 3).y", t=t, v=v) == pytest.approx(means)


def test_a_band_is_smoothed_like_its_mean() -> None:
    band = {"t": [1, 2, 3], "v": [200, 300, 700], "low": [100, 200, 300], "high": [300, 400, 800]}
    found = js("spread(band, 2)", band=band)
    for name, values in (("y", band["v"]), ("low", band["low"]), ("high", band["high"])):
        pairs = [values[max(0, i - 1) : i + 1] for i in range(3)]
        assert found[name] == pytest.approx([np.mean(pair) / 100 for pair in pairs])


def test_points_are_drawn_up_to_the_round_before_which_rounds_were_left_out() -> None:
    drawn = """(() => {
        const calls = [], told = (name) => (...args) => calls.push([name, ...args]);
        const context = new Proxy({}, { get: (_, name) => told(name),
          set: (_, name, value) => told(name)(value) });
        drawCurve(context, { x: [10, 20, 21, 22], y: [1, 2, NaN, 4], sparse },
          { px: (x) => x, py: (y) => y }, [], false);
        return calls;
    })()"""
    for until, points in ((20, [10, 20]), (0, [])):
        calls = js(drawn, sparse=until)
        assert [call[1] for call in calls if call[0] == "arc"] == points
        widths = [call[1] for call in calls if call[0] == "lineWidth"]
        assert widths[1] < widths[0]  # the part with points is thinner


def test_what_has_no_number_is_sorted_last() -> None:
    entries = [{"mean": value} for value in (2, None, 3, 1)]
    sort = "[1, -1].map((way) => TableView.prototype.sorted.call({ sort: [0, way] }, entries))"
    found = [[entry["mean"] for entry in order] for order in js(sort, entries=entries)]
    assert found == [[1, 2, 3, None], [3, 2, 1, None]]

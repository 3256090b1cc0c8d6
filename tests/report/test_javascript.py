"""The scripts of the report's page under node: their syntax, what they compute, and that they run.

node has no browser; the scripts get a fake one, whose elements only keep what is put into them.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from wima.report.page import FOLDER, SCRIPTS

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
SOURCE = "\n".join((FOLDER / name).read_text(encoding="utf-8") for name in SCRIPTS)
HARNESS = """
const curve = { first: 1, step: 2, v: [10, 30, null, 20] }, curves = { plain: curve, wima2: curve };
const run = { name: "run-0", state: "done", done: 7, rounds: 7, seed: 0, seconds: 75, own: {},
  algorithm: "fedavg", data: "digits", settings: "", machine: 0, curves };
const entry = { mean: 61.25, deviation: 0.5, text: "", seeds: 1, basis: "1 seed", jitter: 1.5,
  jump: 2, forgetting: 0.5, reached: [7], members: [[0, 0, "plain"], [1, -1, "plain"]] };
const more = { gain: [2, 1, "rounds", 4], paper: 60, where: "Table 2", remark: "printed twice" };
const entries = [{ ...entry, at: [0, 0, 0] }, { ...entry, ...more, at: [0, 0, 1] }];
const table = (columns) => ({ title: "Own", kind: "table", command: "wima run digits", slug: "own",
  last: 4, rows: ["FedAvg"], columns, headings: ["plain", "WIMA"], entries });
const data = { measure: { title: "accuracy", share: true, digits: 2, sign: 1, target: 60 },
  tables: [table(["digits"]), table(["digits", "FEMNIST"])], runs: [run], machines: [{ cores: 2 }],
  omitted: [["a", "b"]], facts: { made: "today", version: "1", command: "wima report" }, files: {} };

const listeners = [], anything = () => new Proxy(() => anything(), { get: anything });
const listen = (name, listener) => listeners.push([name, listener]);
const loose = { style: anything(), classList: anything(), clientWidth: 400, clientHeight: 300 };
class Element {
  constructor(tag) { Object.assign(this, loose, { tag, children: [], value: "", dataset: {} }); }
  setAttribute(name, value) { this[name] = value; }
  addEventListener(name, listener) { listen(name, listener); }
  append(...children) { this.children.push(...children); }
  replaceChildren(...children) { this.children = children; }
  querySelectorAll(tag) { return this.children.flatMap((child) => child instanceof Element
    ? [...(child.tag === tag ? [child] : []), ...child.querySelectorAll(tag)] : []); }
  querySelector(tag) { return this.querySelectorAll(tag)[0]; }
  set textContent(text) { this.children = [text]; }
  get textContent() { return this.children.map((child) => child.textContent ?? child).join(""); }
  getBoundingClientRect() { return { left: 0, top: 0 }; }
  getContext() { return new Proxy({}, { get: () => () => {} }); }
  remove() {} close() {} showModal() {} observe() {} unobserve() {}
}
const make = (tag) => new Element(tag), named = { data: { textContent: JSON.stringify(data) } };
const document = { getElementById: (id) => (named[id] ??= make(id)), createElement: make,
  body: make("body"), createElementNS: (_, tag) => make(tag), documentElement: make("html") };
const fire = (name, key = "") => [...listeners].forEach(([on, listener]) => on === name
  && listener({ key, target: make("input"), preventDefault() {}, clientX: 99, clientY: 99 }));
const input = JSON.parse(require("fs").readFileSync(0, "utf8")), vm = require("vm");
const context = vm.createContext({ document, fire, named, addEventListener: listen, window: {},
  navigator: { clipboard: { writeText: async () => {} } }, getSelection: anything,
  ResizeObserver: Element, IntersectionObserver: Element, matchMedia: () => make("media"),
  getComputedStyle: () => ({}), requestAnimationFrame: (draw) => { draw(); }, ...input.names });
vm.runInContext(input.script, context);
console.log(JSON.stringify(vm.runInContext(input.code, context)));
"""
EVERYTHING = """["beforeprint", "pointermove"].forEach((name) => fire(name));
["ArrowLeft", "ArrowUp", "End", "Escape", "h", "ArrowDown", "h"].forEach((key) => fire("keydown", key));
["input", "change", "pointerleave", "click", "afterprint"].forEach((name) => fire(name));
named.main.textContent"""


def node(*arguments: str, text: str = "") -> tuple[str, str]:
    command = ["node", *arguments]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=30)
    return done.stdout, done.stderr


def js(code: str, script: str = SOURCE, **names: Any) -> Any:
    """The value of an expression after the page's script ran; `names` are its variables."""
    sent = json.dumps({"script": script, "code": code, "names": names})
    printed, errors = node("-e", HARNESS, text=sent)
    assert errors == ""
    return json.loads(printed)

"use strict";
// The series of a chart as toggle buttons.

const CHIPS = 48; // at once; the filter finds the others

class Legend {
  constructor(chart) {
    this.chart = chart;
    this.list = el("div", { class: "chips", role: "group", "aria-label": "Series" });
    this.rest = el("p", { class: "rest" });
    this.search = el("input", {
      type: "search", placeholder: "Find a series", "aria-label": "Find a series",
      oninput: () => this.fill(),
    });
    const all = (shown) => () => chart.show(this.matching().map((line) => line.key), shown);
    this.tools = el("div", { class: "controls" }, this.search,
      el("button", { type: "button", onclick: all(true) }, "Show all"),
      el("button", { type: "button", onclick: all(false) }, "Hide all"));
    this.element = el("figcaption", { class: "legend" }, this.tools, this.list, this.rest);
  }

  /** One line per series that matches the filter. */
  matching() {
    const fits = matcher(this.search.value);
    const first = new Map();
    for (const line of this.chart.lines) if (!first.has(line.key)) first.set(line.key, line);
    return [...first.values()].filter((line) => fits(this.chart.name(line)));
  }

  fill() {
    const lines = this.matching();
    this.search.hidden = !this.search.value && lines.length <= CHIPS;
    this.buttons = lines.slice(0, CHIPS).map((line) => this.chip(line));
    this.list.replaceChildren(...this.buttons);
    const more = lines.length - this.buttons.length;
    this.rest.textContent = more > 0 ? `and ${more} more: find them by name` : "";
    this.update();
  }

  chip(line) {
    const swatch = sample(this.chart.dash(line));
    swatch.style.setProperty("color", `var(--c${this.chart.tone(line)})`);
    return el("button", {
      type: "button", class: "chip", "data-key": line.key, onclick: () => this.chart.toggle(line.key),
    }, swatch, this.chart.name(line));
  }

  update() {
    for (const button of this.buttons || []) {
      button.setAttribute("aria-pressed", String(!this.chart.hidden.has(button.dataset.key)));
    }
  }
}

/** A short line, dashed like the curve. */
function sample(dash) {
  return svg("svg", { class: "swatch", viewBox: "0 0 30 4", "aria-hidden": "true" },
    svg("path", { d: "M0 2H30", stroke: "currentcolor", "stroke-width": 3, "stroke-dasharray": dash.join(" ") || "none" }));
}

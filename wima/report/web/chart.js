"use strict";
// Curves on a canvas: a colour per row, plain solid, averages dashed; seeds as a mean with a band.

const DASHES = [[], [7, 4], [2, 3], [8, 3, 2, 3], [12, 4], [1, 5]];
const SHOWN_ROWS = 12; // the others are hidden at first

function dashOf({ headings }, heading) {
  const place = headings.indexOf(heading) + DASHES.length - 2;
  return heading === "plain" ? [] : DASHES[1 + (place % (DASHES.length - 1))];
}

class Chart {
  constructor(table) {
    this.table = table;
    this.settings = { column: 0, smoothing: 0, logX: false, logY: false, late: false, each: false };
    this.hidden = new Set();
    table.rows.forEach((_, row) => table.headings.forEach((_, heading) => {
      if (row >= SHOWN_ROWS) this.hidden.add(`${row}/${heading}`);
    }));
    this.cursor = null; // { line, index }
    this.canvas = el("canvas", {
      tabindex: "0", role: "img",
      "aria-label": `Curves of ${table.title}. Arrow keys move through rounds and series, H hides a series.`,
      onpointermove: (event) => this.point(event), onpointerdown: (event) => this.point(event),
      onpointerleave: () => this.select(null), onkeydown: (event) => this.key(event),
      onblur: () => this.select(null),
    });
    this.readout = el("output", { class: "readout", "aria-live": "polite" });
    this.tell("");
    this.legend = new Legend(this);
    this.strip = new Strip(this);
    this.element = el("figure", { class: "chart" }, this.toolbar(),
      el("div", { class: "plot" }, this.canvas), this.readout, this.legend.element);
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    this.load();
  }

  toolbar() {
    const { columns } = this.table;
    const set = (name, value) => { this.settings[name] = value; this.load(); };
    const check = (name, text) => el("label", { class: "check" },
      el("input", { type: "checkbox", name, onchange: (e) => set(name, e.target.checked) }), text);
    const column = el("select", { name: "column", onchange: (e) => set("column", Number(e.target.value)) },
      columns.map((text, i) => el("option", { value: i }, text)));
    const shown = el("span", { class: "value" }, "off");
    const smoothing = el("input", {
      type: "range", min: 0, max: 100, value: 0, name: "smoothing",
      oninput: (e) => {
        shown.textContent = e.target.value > 1 ? `${e.target.value} rounds` : "off";
        set("smoothing", Number(e.target.value));
      },
    });
    return el("div", { class: "controls" }, columns.length > 1 ? field("Curves of", column) : "",
      el("label", { class: "field" }, el("span", {}, "Smoothing"), smoothing, shown),
      check("late", `Last ${this.table.last} rounds`), check("logY", "Log scale"), check("logX", "Log rounds"),
      this.table.entries.some((entry) => entry.band) ? check("each", "Each seed") : "");
  }

  /** The lines of the chosen column, smoothed. */
  load() {
    const { column, smoothing } = this.settings;
    this.cursor = null;
    this.lines = [];
    for (const entry of this.table.entries) {
      if (entry.at[1] !== column || entry.at[2] < 0) continue;
      const own = this.seeds(entry);
      const { band } = entry;
      if (!band || this.settings.each) {
        this.lines.push(...own);
        continue;
      }
      const parts = own.filter((line) => band.seeds.includes(line.seed));
      const source = parts.map((line) => line.source).join();
      this.lines.push({ ...parts[0], ...spread(band, smoothing), window: null, seed: -1, source, parts },
        ...own.filter((line) => !parts.includes(line)));
    }
    this.lines = onceOnly(this.lines);
    this.lines.sort((a, b) => a.row - b.row || a.heading - b.heading);
    this.canvas.style.setProperty("--strip", `${this.strip.room()}px`);
    this.legend.fill();
    this.draw();
  }

  /** A line for each seed of an entry. */
  seeds({ at: [row, , heading], members }) {
    return members.filter(([, number, model]) => DATA.runs[number]?.curves[model]).map(([seed, number, model]) => {
      const { curves, windows } = DATA.runs[number];
      return {
        key: `${row}/${heading}`, row, heading, seed, source: `${number}/${model}`, sparse: curves[model].sparse,
        ...smoothed(curves[model], this.settings.smoothing), window: windows[model] && points(windows[model], 0),
      };
    });
  }

  /** A colour per row, or per model if there is only one row. */
  tone(line) { return (this.table.rows.length > 1 ? line.row : line.heading) % PALETTE; }

  name(line) {
    if (line.common || this.table.rows.length === 1) return this.table.headings[line.heading];
    return [this.table.rows[line.row], this.table.headings[line.heading]].filter(Boolean).join(", ");
  }

  visible() { return this.lines.filter((line) => !this.hidden.has(line.key)); }

  toggle(key) {
    if (!this.hidden.delete(key)) this.hidden.add(key);
    this.cursor = null;
    this.legend.update();
    this.draw();
  }

  show(keys, shown) {
    keys.forEach((key) => (shown ? this.hidden.delete(key) : this.hidden.add(key)));
    this.legend.update();
    this.draw();
  }

  draw() {
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => { this.waiting = 0; this.paint(); });
  }

  /** The visible ranges: [x0, x1, y0, y1]. */
  range(lines) {
    let [x0, x1, y0, y1] = [Infinity, -Infinity, Infinity, -Infinity];
    for (const { x } of lines) x1 = Math.max(x1, x[x.length - 1]);
    const from = this.settings.late ? x1 - this.table.last : -Infinity;
    for (const { x, y, low = y, high = y } of lines) {
      for (let i = 0; i < x.length; i++) {
        if (x[i] < from || !(this.settings.logY ? low[i] > 0 : !Number.isNaN(y[i]))) continue;
        x0 = Math.min(x0, x[i]);
        y0 = Math.min(y0, low[i]);
        y1 = Math.max(y1, high[i]);
      }
    }
    if (y0 > y1) return [0, 1, this.settings.logY ? 1 : 0, this.settings.logY ? 10 : 1];
    const room = this.settings.logY ? 0 : (y1 - y0) * 0.04 || Math.abs(y1) * 0.1 || 1;
    return [x0, x1 > x0 ? x1 : x0 + 1, y0 - room, y1 > y0 || room ? y1 + room : y0 * 2];
  }

  /** Functions from data to pixels. */
  scales(width, height, [x0, x1, y0, y1]) {
    const pad = { left: 64, right: 12, top: 12, bottom: 36 };
    const bottom = height - pad.bottom; // of the whole chart; the curves end above the strip
    const end = bottom - this.strip.room();
    const { logX, logY } = this.settings;
    return { pad, bottom, end, px: scale(logX, x0, x1, pad.left, width - pad.right),
      py: scale(logY, y0, y1, end, pad.top) };
  }

  paint() {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (!width || !height) return;
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    const context = this.canvas.getContext("2d");
    context.scale(ratio, ratio);
    const lines = this.visible();
    const range = this.range(lines);
    this.at = this.scales(width, height, range);
    this.axes(context, width, height, range);
    const { pad, py, end, bottom } = this.at;
    const colours = Array.from({ length: PALETTE }, (_, i) => colour(`--c${i}`));
    const chosen = this.cursor && this.cursor.line.key;
    const draw = (line, curve, toY, dash) => {
      context.globalAlpha = chosen && line.key !== chosen ? 0.35 : 1;
      context.strokeStyle = colours[this.tone(line)];
      drawCurve(context, curve, { px: this.at.px, py: toY }, dash, line.key === chosen);
    };
    this.clipped(context, width, pad.top, end, () => {
      context.globalAlpha = 0.13;
      lines.filter((line) => line.low).forEach((line) => fillBand(context, line, this.at, colours[this.tone(line)]));
      lines.forEach((line) => draw(line, line, py, this.dash(line)));
    });
    if (bottom > end) this.strip.paint(context, width, bottom, lines, range, draw);
    if (this.cursor) this.mark(context, colours);
  }

  /** Clip drawing to the range between two heights. */
  clipped(context, width, top, bottom, draw) {
    const { pad } = this.at;
    context.save();
    context.beginPath();
    context.rect(pad.left, top - 2, width - pad.left - pad.right, bottom - top + 4);
    context.clip();
    draw();
    context.restore();
  }

  dash({ heading }) { return dashOf(this.table, this.table.headings[heading]); }

  axes(context, width, height, [x0, x1, y0, y1]) {
    const { pad, px, py, end, bottom } = this.at;
    this.rules(context, width, ticks(y0, y1, this.settings.logY, (end + pad.bottom) / 60), py);
    context.textAlign = "center";
    context.textBaseline = "top";
    for (const tick of ticks(x0, x1, this.settings.logX, width / 110)) {
      context.fillText(short(tick), px(tick), bottom + 8);
    }
    context.fillText("round", (pad.left + width - pad.right) / 2, height - 14);
    context.save();
    context.translate(2, (pad.top + end) / 2);
    context.rotate(-Math.PI / 2);
    context.fillText(MEASURE.title, 0, 0);
    context.restore();
  }

  /** Horizontal lines with their numbers. */
  rules(context, width, numbers, py) {
    const { pad } = this.at;
    context.font = "12px system-ui, sans-serif";
    context.lineWidth = 1;
    context.setLineDash([]);
    context.strokeStyle = colour("--rule");
    context.fillStyle = colour("--quiet");
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const number of numbers) {
      context.beginPath();
      context.moveTo(pad.left, py(number));
      context.lineTo(width - pad.right, py(number));
      context.stroke();
      context.fillText(short(number), pad.left - 8, py(number));
    }
  }

  mark(context, colours) {
    const { line, index } = this.cursor;
    const [px, py] = [this.at.px(line.x[index]), this.at.py(line.y[index])];
    context.strokeStyle = colour("--quiet");
    context.setLineDash([3, 3]);
    context.beginPath();
    context.moveTo(px, this.at.pad.top);
    context.lineTo(px, this.at.bottom);
    context.stroke();
    context.setLineDash([]);
    context.fillStyle = colours[this.tone(line)];
    context.beginPath();
    context.arc(px, py, 5, 0, 2 * Math.PI);
    context.fill();
  }

  /** The point nearest to the pointer. */
  point(event) {
    if (!this.at) return;
    const box = this.canvas.getBoundingClientRect();
    const [mx, my] = [event.clientX - box.left, event.clientY - box.top];
    let best = null, least = Infinity;
    for (const line of this.visible()) {
      const index = nearest(line.x, mx, this.at.px);
      const far = Math.hypot(this.at.px(line.x[index]) - mx, this.at.py(line.y[index]) - my);
      if (far < least) [best, least] = [{ line, index }, far];
    }
    this.select(best);
  }

  select(cursor) {
    this.cursor = cursor;
    this.draw();
    if (!cursor) return this.tell("");
    const { line, index } = cursor;
    const value = Number.isNaN(line.y[index]) ? "not finite" : format(line.y[index]) + UNIT;
    const who = line.parts ? `mean of ${line.parts.length} seeds` : `seed ${line.seed}`;
    const ends = line.parts ? ` (${format(line.low[index])} to ${format(line.high[index])})` : "";
    return this.tell(`round ${line.x[index]} \u00b7 ${this.name(line)}, ${who}: ${value}${ends}${this.strip.told(line, line.x[index])}`);
  }

  tell(text) {
    this.readout.textContent = text || "Point at a curve, or use the arrow keys.";
    this.readout.classList.toggle("told", Boolean(text));
  }

  key(event) {
    const lines = this.visible();
    if (!lines.length) return;
    const { line, index } = this.cursor || { line: lines[0], index: lines[0].x.length - 1 };
    const place = lines.indexOf(line);
    const step = event.shiftKey ? 10 : 1;
    const turn = (by) => lines[(place + by + lines.length) % lines.length];
    const moves = {
      ArrowLeft: () => [line, index - step], ArrowRight: () => [line, index + step],
      Home: () => [line, 0], End: () => [line, line.x.length - 1],
      ArrowUp: () => [turn(-1), index], ArrowDown: () => [turn(1), index],
    };
    if (event.key.toLowerCase() === "h" && this.cursor) return this.toggle(line.key);
    if (event.key === "Escape") return this.select(null);
    if (!moves[event.key]) return undefined;
    event.preventDefault();
    const [next, wanted] = this.cursor ? moves[event.key]() : [line, index];
    return this.select({ line: next, index: Math.max(0, Math.min(next.x.length - 1, wanted)) });
  }
}

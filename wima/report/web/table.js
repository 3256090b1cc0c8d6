"use strict";
// Tables: all columns at a glance, or one column in full detail.

/** A number as a button that opens its details. */
function numberButton(table, entry, text) {
  const where = placeName(table, entry);
  return el("button", {
    type: "button", class: "number", title: "Runs, settings and command",
    "aria-label": `${text}: ${where}. Show its runs`, onclick: () => openEntry(table, entry),
  }, text);
}

function placeName(table, entry) {
  const [row, column, heading] = entry.at;
  return [table.rows[row], table.columns[column], table.headings[heading]].filter(Boolean).join(" \u00b7 ");
}

/** Our number with its deviation over seeds, or the text shown instead. */
function level(table, entry) {
  if (entry.text) return [numberButton(table, entry, entry.text)];
  const spread = entry.deviation === null ? "" : el("span", { class: "spread" }, ` \u00b1 ${format(entry.deviation)}`);
  return [numberButton(table, entry, format(entry.mean)), spread];
}

function gainEnds(gain) {
  const [mean, half] = gain;
  return half === null ? "" : `[${format(mean - half, true)}, ${format(mean + half, true)}]${marks(gain)}`;
}

/** The marks after an interval: * if it is from the rounds of one run, \u2020 if zero is excluded after Holm's correction. */
function marks([, half, basis, , marked]) {
  return half === null ? "" : (basis === "rounds" ? "*" : "") + (marked ? "\u2020" : "");
}

/** A gain; without colour unless its interval excludes zero. */
function gainMark([mean, half]) {
  return difference(mean, "plain", half === null || Math.abs(mean) <= half);
}

const hasPaper = (entry) => entry.paper !== undefined;
const paperText = (entry) => (!hasPaper(entry) ? "" : entry.paper === null ? "N/A" : format(entry.paper));
const toPaper = (entry) => (entry.paper === undefined || entry.paper === null || entry.mean === null
  ? null : entry.mean - entry.paper);

function reachedText(entry) {
  const rounds = entry.reached.filter((round) => round !== null);
  if (!entry.reached.length) return "";
  if (!rounds.length) return "never";
  const mean = rounds.reduce((sum, round) => sum + round, 0) / rounds.length;
  const some = rounds.length < entry.reached.length ? ` (${rounds.length} of ${entry.reached.length})` : "";
  return mean.toFixed(0) + some;
}

// The columns of the detailed table: label, meaning, sort key, content.
const DETAILS = [
  ["ours", "mean over the last rounds, then over seeds, with the deviation over seeds",
    (e) => e.mean, (e, t) => level(t, e)],
  ["paper", "as printed in the paper", (e) => e.paper, 
    (e, t) => (hasPaper(e) ? el("span", { class: t.scale === "paper" ? "" : "unclear" }, paperText(e)) : "")],
  ["ours \u2212 paper", "the difference", toPaper,
    (e, t) => (toPaper(e) === null ? "" : difference(toPaper(e), "the paper", t.scale !== "paper"))],
  ["gain", "over plain, paired", (e) => e.gain && e.gain[0],
    (e) => (e.gain && e.gain[0] !== null ? gainMark(e.gain) : "")],
  ["95 % interval", "of the gain", (e) => e.gain && e.gain[1], (e) => (e.gain ? gainEnds(e.gain) : "")],
  ["from", "what the interval is computed over: seeds, or the rounds of one run", (e) => e.gain && e.gain[3],
    (e, t) => (e.gain && e.gain[1] !== null && !t.seeds ? `${e.gain[3]} ${e.gain[2]}` : "")],
  ["paper\u2019s gain", "the difference between the paper\u2019s two numbers", (e) => e.paperGain,
    (e) => format(e.paperGain, true)],
  ["deviation", "standard deviation from round to round, over the last rounds", (e) => e.jitter,
    (e) => format(e.jitter)],
  ["jump", "mean size of the step from one evaluation to the next", (e) => e.jump, (e) => format(e.jump)],
  ["forgetting", "mean of the best so far minus the current value, over the last rounds", (e) => e.forgetting,
    (e) => format(e.forgetting)],
  ["rounds to target", "first evaluated round at the target", (e) => e.reached[0],
    (e) => (MEASURE.target === null ? "" : reachedText(e))],
  ["MB to target", "sent to and from clients until that round", (e) => e.sent && e.sent[0],
    (e) => (e.sent ? e.sent[1] : "")],
  ["seeds", "how many runs are behind the number", (e) => e.seeds, (e, t) => (t.seeds ? "" : e.basis)],
];

class TableView {
  constructor(table) {
    this.table = table;
    this.column = table.columns.length > 1 ? -1 : 0; // -1: all
    this.limit = ROWS_AT_ONCE;
    this.sort = null; // [index of DETAILS, direction]
    this.scroll = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": table.title });
    this.more = el("button", { type: "button", onclick: () => { this.limit = Infinity; this.fill(); } });
    this.search = el("input", {
      type: "search", placeholder: "Find rows", "aria-label": `Find rows of ${table.title}`,
      oninput: () => this.fill(),
    });
    const choice = el("select", { name: "view", onchange: (e) => { this.column = Number(e.target.value); this.fill(); } },
      el("option", { value: -1 }, "all columns"),
      table.columns.map((text, i) => el("option", { value: i }, `${text}, in detail`)));
    this.controls = el("div", { class: "controls" }, table.columns.length > 1 ? field("Show", choice) : "",
      table.rows.length > 15 ? this.search : "");
    this.element = el("div", { class: "table" }, this.controls, this.scroll, this.more, this.note());
    this.byPlace = new Map(table.entries.map((entry) => [entry.at.join("/"), entry]));
    this.fill();
  }

  fill() {
    const fits = matcher(this.search.value);
    const rows = this.table.rows.map((_, i) => i).filter((i) => fits(this.table.rows[i]));
    this.scroll.replaceChildren(this.column < 0 ? this.overview(rows) : this.details(rows));
    this.more.hidden = rows.length <= this.limit;
    this.more.textContent = `Show all ${rows.length} rows`;
  }

  /** How to read the table. */
  note() {
    const { gainNotes, seeds } = this.table;
    return el("p", { class: "rest" }, [seeds === "1 seed" ? "" : "\u00b1 after a level: deviation over seeds.", ...gainNotes,
      gainNotes.length ? "Grey: a gain whose interval contains zero." : "", "Click a number to see its runs."].filter(Boolean).join(" "));
  }

  caption() {
    const { last, seeds } = this.table;
    return el("caption", {}, [`${MEASURE.title}, mean over the last ${last} rounds`, seeds].filter(Boolean).join("; "));
  }

  rowName(row) {
    const name = this.table.rows[row];
    return el("span", { title: this.table.long[name] }, name);
  }

  overview(rows) {
    const { table } = this;
    const used = table.columns.map((_, c) => table.headings.map((_, h) => h)
      .filter((h) => table.entries.some((e) => e.at[1] === c && e.at[2] === h)));
    const top = el("tr", {}, el("td"), table.columns.map((text, c) => (used[c].length
      ? el("th", { scope: "colgroup", colspan: used[c].length }, text) : "")));
    const names = el("tr", {}, el("td"), used.map((headings) => headings.map((h, i) => el("th", {
      scope: "col", class: i ? "" : "first" }, table.headings[h]))));
    const body = rows.slice(0, this.limit).map((row) => el("tr", {},
      el("th", { scope: "row" }, this.rowName(row)),
      used.map((headings, c) => headings.map((h, i) => el("td", { class: i ? "" : "first" },
        this.cell(this.byPlace.get(`${row}/${c}/${h}`)))))));
    return el("table", { class: "overview" }, this.caption(), el("thead", {}, top, names), el("tbody", {}, body));
  }

  /** Our number; below it, the gain over plain and the paper's number with the difference. */
  cell(entry) {
    if (!entry) return "";
    const lines = [el("div", { class: "ours" }, level(this.table, entry))];
    if (entry.gain && entry.gain[0] !== null) {
      const half = entry.gain[1] === null ? "" : ` \u00b1 ${format(entry.gain[1])}`;
      lines.push(el("div", { class: "sub" }, "gain ", gainMark(entry.gain), half + marks(entry.gain)));
    }
    if (hasPaper(entry)) {
      const away = toPaper(entry);
      lines.push(el("div", { class: "sub" }, `paper ${paperText(entry)} `,
        away === null ? "" : difference(away, "the paper", this.table.scale !== "paper")));
    }
    return this.table.seeds ? lines : [...lines, el("div", { class: "sub" }, entry.basis)];
  }

  details(rows) {
    const { table, column } = this;
    const wanted = new Set(rows);
    let entries = table.entries.filter((e) => e.at[1] === column && e.at[2] >= 0 && wanted.has(e.at[0]));
    entries.sort((a, b) => a.at[0] - b.at[0] || a.at[2] - b.at[2]);
    const columns = DETAILS.map((_, i) => i).filter((i) => i === 0 || entries.some((e) => {
      const shown = DETAILS[i][3](e, table);
      return shown !== "" && shown !== null;
    }));
    if (this.sort) entries = this.sorted(entries);
    const shown = entries.slice(0, this.limit === Infinity ? Infinity : this.limit * table.headings.length);
    const head = el("tr", {}, el("th", { scope: "col" }, table.rows.length > 1 ? "row" : ""),
      el("th", { scope: "col" }, "model"), columns.map((i) => this.header(i)));
    const body = shown.map((entry, i) => {
      const row = entry.at[0];
      const again = !this.sort && i && shown[i - 1].at[0] === row;
      const span = this.sort ? 1 : shown.filter((other) => other.at[0] === row).length;
      return el("tr", { class: again ? "again" : "" },
        again ? "" : el("th", { scope: span > 1 ? "rowgroup" : "row", rowspan: span }, this.rowName(row)),
        el("td", { class: "model" }, table.headings[entry.at[2]]),
        columns.map((c) => el("td", {}, DETAILS[c][3](entry, table))));
    });
    return el("table", { class: "details" }, this.caption(), el("thead", {}, head), el("tbody", {}, body));
  }

  header(i) {
    const [label, meaning] = DETAILS[i];
    const own = this.sort && this.sort[0] === i ? this.sort[1] : 0;
    const order = own ? (own > 0 ? "ascending" : "descending") : "none";
    const mark = own ? (own > 0 ? " \u2191" : " \u2193") : "";
    return el("th", { scope: "col", "aria-sort": order, title: meaning },
      el("button", { type: "button", class: "sort", onclick: () => this.turn(i, own) }, label + mark));
  }

  /** Descending, ascending, unsorted. */
  turn(i, own) {
    this.sort = own === 0 ? [i, -1] : own < 0 ? [i, 1] : null;
    this.fill();
    const again = this.scroll.querySelectorAll("button.sort");
    const [label] = DETAILS[i];
    [...again].find((button) => button.textContent.startsWith(label))?.focus();
  }

  /** Sorted by a column; entries without a number come last. */
  sorted(entries) {
    const [index, way] = this.sort;
    const key = DETAILS[index][2];
    const has = (value) => value !== null && value !== undefined;
    return [...entries].sort((a, b) => {
      const [x, y] = [key(a), key(b)];
      return has(x) && has(y) ? way * (x - y) : has(y) - has(x);
    });
  }
}

"use strict";
// The sections below a table: tables of strings, each with a figure of small panels.

const PANEL = { width: 300, height: 230, left: 42, right: 14, top: 8, bottom: 26 };

/** Lines of strings as a table; the first `labels` columns are names, and a name that comes again is hidden. */
function textTable([labels, header, lines]) {
  const again = lines.map((line, n) => labels > 1 && n > 0 && lines[n - 1][0] === line[0]);
  const name = (text, hide) => el("th", { scope: "row" }, el("span", { class: hide ? "hidden" : null }, text));
  const cells = (line, n) => line.map((text, i) => (i < labels ? name(text, i === 0 && again[n]) : el("td", {}, text)));
  return el("table", { class: "texts" },
    el("thead", {}, el("tr", {}, header.map((text) => el("th", { scope: "col" }, text)))),
    el("tbody", {}, lines.map((line, n) => el("tr", { class: again[n] ? "again" : null }, cells(line, n)))));
}

function sectionView(table, { title, grid, notes, picture }) {
  const scroll = { class: "scroll", tabindex: "0", role: "region", "aria-label": `${title}, ${table.title}` };
  return [el("h3", {}, title), el("div", scroll, textTable(grid)), el("p", { class: "rest" }, notes.join(" ")),
    picture && picture[3].length ? pictureView(table, picture) : ""];
}

/** A panel per place with the same axes, and a legend of the models. */
function pictureView(table, [x, y, diagonal, panels, hidden]) {
  const all = panels.flatMap(([, lines]) => Object.values(lines).flat());
  const ends = diagonal ? [0, 100] : [Math.min(...all.map(([v]) => v)), Math.max(...all.map(([v]) => v))];
  const shown = table.headings.filter((heading) => panels.some(([, lines]) => lines[heading]));
  const legend = shown.map((heading) => el("span", { class: "key" }, toned(sample(dashOf(table, heading)), table, heading), heading));
  return el("figure", { class: "panels" },
    el("div", {}, panels.map(([title, lines]) => el("div", {}, title ? el("h4", {}, title) : "",
      panelView(table, lines, ends, diagonal, `${y}, against ${x}${title ? `: ${title}` : ""}`)))),
    el("figcaption", {}, el("p", {}, `Across: ${x}. Up: ${y}.${hidden ? ` ${hidden} more panels are left out.` : ""}`), legend));
}

function toned(element, table, heading) {
  element.style.setProperty("color", `var(--c${table.headings.indexOf(heading) % PALETTE})`);
  return element;
}

function panelView(table, lines, [low, high], diagonal, label) {
  const { width, height, left, right, top, bottom } = PANEL;
  const px = scale(false, low, high === low ? low + 1 : high, left, width - right);
  const py = scale(false, 0, 100, height - bottom, top);
  const panel = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  for (const tick of [0, 25, 50, 75, 100]) {
    panel.append(svg("path", { class: "rule", d: `M${left} ${py(tick)}H${width - right}` }),
      svg("text", { x: left - 6, y: py(tick) + 4, "text-anchor": "end" }, short(tick)));
  }
  for (const tick of ticks(low, high, false, 5)) {
    panel.append(svg("text", { x: px(tick), y: height - 8, "text-anchor": "middle" }, short(tick)));
  }
  if (diagonal) panel.append(svg("path", { class: "diagonal", d: `M${px(0)} ${py(0)}L${px(100)} ${py(100)}` }));
  for (const [heading, points] of Object.entries(lines)) {
    const places = points.map(([a, b]) => `${px(a).toFixed(1)} ${py(b).toFixed(1)}`);
    const dash = dashOf(table, heading).join(" ") || "none";
    const line = svg("path", { class: "line", d: `M${places.join("L")}`, "stroke-dasharray": dash });
    const dots = diagonal ? points.map(([a, b]) => svg("circle", { cx: px(a).toFixed(1), cy: py(b).toFixed(1), r: 2.5 })) : [];
    panel.append(toned(svg("g", {}, line, ...dots), table, heading));
  }
  return panel;
}

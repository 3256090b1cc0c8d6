"use strict";
// The page: a section per table, then all runs, what was left out, and how numbers are computed.

const charts = [];

function tableSection(table) {
  const place = table.shown ? `${table.shown} of the paper` : "";
  const lead = [place, table.scale ? `scale ${table.scale}` : ""].filter(Boolean).join(" \u00b7 ");
  const view = el("div", { class: "lazy" });
  const plot = el("div", { class: "lazy chart-place" });
  const more = (table.sections || []).map((section) => {
    const place = el("div", { class: "lazy" });
    whenNear(place, () => place.append(...sectionView(table, section)));
    return place;
  });
  const files = (DATA.files[table.slug] || []).map((name) => el("li", {}, el("a", { href: name }, name)));
  const section = el("section", { id: `table-${table.slug}` },
    el("h2", {}, table.title), lead ? el("p", { class: "lead" }, lead) : "",
    table.settings.length ? el("p", { class: "settings" }, table.settings.join(" ")) : "",
    table.note ? el("details", {}, el("summary", {}, table.scale ? `What scale ${table.scale} changes` : "Note"), el("p", {}, table.note)) : "",
    table.kind === "curves" ? [plot, view] : [view, plot], more,
    table.command ? code(table.command, "Command of this section") : "",
    remarks(table),
    el("details", { class: "files" }, el("summary", {}, "Files"), el("ul", {}, files)));
  whenNear(view, () => view.append(new TableView(table).element));
  whenNear(plot, () => {
    const chart = new Chart(table);
    charts.push(chart);
    plot.append(chart.element);
  });
  return section;
}

/** Places where the paper contradicts itself. */
function remarks(table) {
  const found = new Map();
  for (const entry of table.entries) {
    if (entry.remark) found.set(`${table.rows[entry.at[0]]}, ${table.columns[entry.at[1]]}`, entry.remark);
  }
  if (!found.size) return "";
  return el("details", {}, el("summary", {}, "Remarks on the paper\u2019s numbers"),
    el("ul", {}, [...found].map(([where, text]) => el("li", {}, `${where}: ${text}`))));
}

/** Fill an element when it comes near the viewport, or is printed. */
const waiting = new Map();
const observer = new IntersectionObserver((seen) => {
  for (const { target, isIntersecting } of seen) if (isIntersecting) fillNow(target);
}, { rootMargin: "600px" });

function whenNear(element, fill) {
  waiting.set(element, fill);
  observer.observe(element);
}

function fillNow(element) {
  const fill = waiting.get(element);
  waiting.delete(element);
  observer.unobserve(element);
  if (fill) fill();
}

function omittedSection() {
  if (!DATA.omitted.length) return "";
  return el("section", { id: "left-out" }, el("h2", {}, "Left out"),
    el("ul", {}, DATA.omitted.map(([path, reason]) => el("li", {}, el("code", {}, path), `: ${reason}`))));
}

function methodSection() {
  const says = [
    ["Headline", "Each training is one comparison, however many tables show it, with the average that most of them have. Significant: different from zero after Holm\u2019s correction for the number of comparisons. The interval of the median gain is computed from order statistics, if there are at least six comparisons; it treats them as a sample of possible comparisons."],
    ["Level", "The metric is averaged over the evaluated rounds among the last rounds of a run, then over seeds; \u00b1 is the standard deviation over seeds."],
    ["Gain", "Both models of a pair saw the same cohorts, so the gain over plain is a paired difference. With two or more seeds, its 95 % interval is Student\u2019s, over the seeds\u2019 differences. With one seed (marked *), it comes from the rounds of that run: the means of ten stretches count as fewer independent values the more neighbouring stretches are correlated. That interval is for the mean of this run and says nothing about other seeds. A \u2020 marks a gain that still differs from zero after Holm\u2019s correction for the number of intervals in the table."],
    ["Deviation and jump", "The standard deviation from round to round over the last rounds, and the mean size of the step from one evaluation to the next: how steady a model is."],
    ["Forgetting", "How far a model falls behind its best value so far, averaged over the last rounds."],
    ["Rounds to target", "The first evaluated round at the target, averaged over the seeds that reach it. MB: millions of bytes sent to and from clients until then, if runs recorded them."],
    ["N/A", "At least one seed diverged. A dash means that the run was not started; 120/300 rounds, that it is not finished."],
    ["Curves", "If several seeds are finished, a curve is their mean, with a band from the minimum to the maximum. Where rounds were not evaluated, there are points on a thin line. Long curves are thinned to what a screen can show, keeping the minimum and maximum of each stretch. Smoothing is a mean over the preceding rounds. The strip below the curves shows the number of models in windows that are chosen automatically."],
  ];
  return el("section", { id: "method" }, el("h2", {}, "How the numbers are computed"),
    el("dl", { class: "method" }, says.map(([term, text]) => el("div", {}, el("dt", {}, term), el("dd", {}, text)))));
}

function summary() {
  const states = {};
  for (const run of DATA.runs) states[run.state] = (states[run.state] || 0) + 1;
  const told = Object.entries(states).map(([state, count]) => `${count} ${state}`).join(", ");
  const target = MEASURE.target === null ? "" : ` \u00b7 target ${format(MEASURE.target)}${UNIT}`;
  return `${DATA.runs.length} ${DATA.runs.length === 1 ? "run" : "runs"}: ${told || "none"} \u00b7 ${MEASURE.title}${target} \u00b7 ${DATA.facts.made}`;
}

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  COLOURS.clear();
  charts.forEach((chart) => chart.paint());
}

function start() {
  const main = document.getElementById("main");
  const details = document.getElementById("details") || ""; // notes on each data set
  main.append(...DATA.tables.map(tableSection), details, runsSection(), omittedSection(), methodSection());
  document.getElementById("summary").textContent = summary();
  document.getElementById("contents").append(...[...main.querySelectorAll("section")].map((section) =>
    el("a", { href: `#${section.id}` }, section.querySelector("h2").textContent)));
  document.getElementById("footer").append(
    `Made by wima ${DATA.facts.version}: `, el("code", {}, DATA.facts.command),
    ". Every number is in ", el("a", { href: "data.csv" }, "data.csv"), ".");
  const theme = document.getElementById("theme");
  theme.addEventListener("change", () => setTheme(theme.value));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTheme(theme.value));
  document.getElementById("dialog").addEventListener("click", (event) => {
    if (event.target.id === "dialog") event.target.close(); // a click outside the dialog
  });
  addEventListener("beforeprint", () => {
    [...waiting.keys()].forEach(fillNow);
    setTheme("light");
  });
  addEventListener("afterprint", () => setTheme(theme.value));
}

start();

"use strict";
// Runs: the list of all runs, and the details of each on demand.

function facts(pairs) {
  return el("dl", {}, pairs.filter(([, value]) => value !== "" && value !== null && value !== undefined)
    .map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

/** A block of text with a button to copy it. */
function code(text, label) {
  const button = el("button", {
    type: "button", class: "copy",
    onclick: async () => {
      try {
        await navigator.clipboard.writeText(text);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(block); // no clipboard: select the text
      }
    },
  }, "Copy");
  const block = el("pre", { tabindex: "0", "aria-label": label }, text);
  return el("div", { class: "code" }, el("h4", {}, label), button, block);
}

/** Settings, machine, versions, time and command of a run. */
function runFacts(run) {
  const machine = DATA.machines[run.machine] || {};
  const where = ["processor", "cores", "platform"].map((name) => [name, machine[name]]);
  const versions = Object.entries(machine).filter(([name]) => !["processor", "cores", "platform"].includes(name));
  const pace = run.seconds && run.done ? ` (${(run.seconds / run.done).toPrecision(3)} s per round)` : "";
  return [
    facts([["state", run.state + (run.reason ? `: ${run.reason}` : "")], ["rounds", `${run.done} of ${run.rounds}`],
      ["seed", String(run.seed)], ["time", run.seconds === null ? "" : duration(run.seconds) + pace],
      ...Object.entries(run.own)]),
    code(run.command || "(not recorded)", "Command"),
    code(run.settings, "Settings (settings.toml)"),
    el("h4", {}, "Machine and versions"), facts([...where, ...versions]),
  ];
}

function openDialog(title, ...content) {
  const dialog = document.getElementById("dialog");
  const close = el("button", { type: "button", class: "close", onclick: () => dialog.close() }, "Close");
  dialog.replaceChildren(el("div", { class: "bar" }, el("h2", { id: "dialog-title" }, title), close), ...content.flat());
  dialog.showModal();
  dialog.scrollTop = 0;
}

function openRun(run) {
  openDialog(run.name, runFacts(run));
}

/** The details behind one number of a table. */
function openEntry(table, entry) {
  const gain = entry.gain && entry.gain[0] !== null
    ? `${format(entry.gain[0], true)} ${gainEnds(entry.gain)}` : "";
  const basis = gain && entry.gain[1] !== null ? (entry.gain[2] === "seeds"
    ? `${entry.gain[3]} seeds` : `${entry.gain[3]} rounds of one run`) : "";
  const rows = [
    [MEASURE.title, entry.text || format(entry.mean) + (entry.deviation === null ? "" : ` \u00b1 ${format(entry.deviation)} over seeds`)],
    ["based on", entry.basis],
    ["gain over plain", gain], ["interval from", basis],
    ["paper", hasPaper(entry) ? `${paperText(entry)} (${entry.where})` : ""],
    ["remark", entry.remark],
    ["deviation from round to round", format(entry.jitter)], ["mean jump", format(entry.jump)],
    ["forgetting", format(entry.forgetting)],
    ["rounds to target", MEASURE.target === null ? "" : reachedText(entry)],
    ["MB to target", entry.sent ? entry.sent[1] : ""],
  ];
  const runs = entry.members.map(([seed, number, model], i) => {
    const run = DATA.runs[number];
    if (!run) return el("p", {}, `Seed ${seed}: its run is missing.`);
    return el("details", { open: i === 0 }, el("summary", {}, `Seed ${seed}: ${run.name}, model ${model}`), runFacts(run));
  });
  openDialog(placeName(table, entry) || table.title, facts(rows), el("h3", {}, "Runs"), runs);
}

/** The section with all runs. */
function runsSection() {
  let limit = RUNS_AT_ONCE;
  const body = el("tbody");
  const count = el("span", { class: "count", "aria-live": "polite" });
  const more = el("button", { type: "button", onclick: () => { limit = Infinity; fill(); } });
  const search = el("input", {
    type: "search", placeholder: "Find runs: name, state, algorithm, settings", "aria-label": "Find runs",
    oninput: () => fill(),
  });
  const texts = DATA.runs.map((run) => [run.name, run.state, run.algorithm, run.data, run.settings].join("\n"));
  function fill() {
    const fits = matcher(search.value);
    const found = DATA.runs.filter((_, i) => fits(texts[i]));
    body.replaceChildren(...found.slice(0, limit).map((run) => el("tr", {},
      el("th", { scope: "row" }, el("button", { type: "button", class: "name", onclick: () => openRun(run) }, run.name)),
      el("td", { class: "model" }, run.algorithm), el("td", { class: "model" }, run.data), el("td", {}, String(run.seed)),
      el("td", { class: "model" }, run.state), el("td", {}, `${run.done}/${run.rounds}`), el("td", {}, duration(run.seconds)))));
    count.textContent = `${found.length} of ${DATA.runs.length}`;
    more.hidden = found.length <= limit;
    more.textContent = `Show all ${found.length} runs`;
  }
  fill();
  const heads = ["run", "algorithm", "data", "seed", "state", "rounds", "time"];
  const table = el("table", { class: "runs" }, el("caption", {}, "All runs; a name opens settings, machine and command"),
    el("thead", {}, el("tr", {}, heads.map((text) => el("th", { scope: "col" }, text)))), body);
  return el("section", { id: "all-runs" }, el("h2", {}, "All runs"),
    el("div", { class: "controls" }, search, count),
    el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "All runs" }, table), more);
}
